"""All tests, as six pytest processes side by side: the testbed's mostly wait, while the others mostly compute.

Within a part there is one test at a time: the launcher's runs of one name would end each other's processes, and tests
of `rest` share a name. Recipes' tests start no named runs; those of `starts` and of benchmarks, which are a part with
torch's, start trainers and scripts in runs with names of their own. Slurm's tests are a part, and those of SSH and of
containers another; one that is marked `alone` waits for the other part's current test (tests/testbed/plugin.py).
Not by pytest-xdist: its groups do nothing under pytest 9.2.
"""

from __future__ import annotations

import subprocess
import sys
import threading

HOSTS = ("tests/containers", "tests/launcher/ssh")
STARTS = ("tests/launcher/compare", "tests/launcher/script")


def without(*folders: str) -> list[str]:
    return [f"--ignore={folder}" for folder in folders]


PARTS = {
    "starts": ["-m", "not testbed", *STARTS],
    "rest": ["-m", "not testbed", *without("tests/recipes", "tests/benchmarks", *STARTS)],
    "torch": ["tests/recipes/torch_", "tests/benchmarks"],
    "recipes": ["tests/recipes", *without("tests/recipes/torch_")],
    "slurm": ["-m", "testbed", *without("tests/recipes", "tests/benchmarks", *HOSTS)],
    "hosts": ["-m", "testbed", *HOSTS],
}
"""What a part's lines begin with, and how pytest is told its tests."""


def main(arguments: list[str]) -> int:
    """Run all parts with these arguments of pytest's. The first exit status that is not 0, else 0.

    The last lines name the tests that failed in any part: the part that ended first may be far above.
    """
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "pytest", "--durations=15", *selection, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for name, selection in PARTS.items()
    }
    summaries: dict[str, list[str]] = {name: [] for name in running}
    readers = [threading.Thread(target=_repeat, args=(*part, summaries[part[0]])) for part in running.items()]
    for reader in readers:
        reader.start()
    try:
        for reader in readers:
            reader.join()
    except KeyboardInterrupt:  # every pytest got the signal as well, and prints its summary
        for reader in readers:
            reader.join()
    codes = {name: process.wait() for name, process in running.items()}
    for name, lines in summaries.items():
        for line in [*lines, f"exit status {codes[name]}\n"]:
            print(f"{name:7} | {line}", end="")
    return next((code for code in codes.values() if code), 0)


def _repeat(name: str, process: subprocess.Popen[str], summary: list[str]) -> None:
    """Print the lines of one part as they come; its failed tests and its last line go to `summary`."""
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
