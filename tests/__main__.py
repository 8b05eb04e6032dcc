"""All tests, as two pytest processes side by side: those of the testbed mostly wait, while the rest mostly compute.

Not by pytest-xdist: its groups do nothing under pytest 9.2. Within either half there is one test at a time: the testbed
is one, and runs of one name would end each other's processes.
"""

from __future__ import annotations

import subprocess
import sys
import threading

HALVES = {"testbed": "testbed", "rest": "not testbed"}
"""What a half's lines begin with, and the tests that are in it, as pytest's `-m` says it."""


def main(arguments: list[str]) -> int:
    """Run both halves with these arguments of pytest's. The first exit status that is not 0, else 0.

    The last lines name the tests that failed in either half: the half that ended first may be far above.
    """
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "pytest", "-m", marks, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for name, marks in HALVES.items()
    }
    summaries: dict[str, list[str]] = {name: [] for name in running}
    readers = [threading.Thread(target=_repeat, args=(*half, summaries[half[0]])) for half in running.items()]
    for reader in readers:
        reader.start()
    try:
        for reader in readers:
            reader.join()
    except KeyboardInterrupt:  # both were told as well, and say what they had found
        for reader in readers:
            reader.join()
    codes = [process.wait() for process in running.values()]
    for name, lines in summaries.items():
        for line in lines:
            print(f"{name:7} | {line}", end="")
    return next((code for code in codes if code), 0)


def _repeat(name: str, process: subprocess.Popen[str], summary: list[str]) -> None:
    """Print the lines of one half as they come; its failed tests and its last line go to `summary`."""
    assert process.stdout is not None
    line = ""
    for line in process.stdout:
        sys.stdout.write(f"{name:7} | {line}")
        sys.stdout.flush()
        if line.startswith(("FAILED ", "ERROR ")):
            summary.append(line)
    summary.append(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
