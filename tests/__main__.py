"""All tests, as seven pytest processes and mypy side by side: the testbed's mostly wait, the others mostly compute.

Within a part there is one test at a time: the launcher's runs of one name would end each other's processes, and tests
of `rest` share a name. Tests of the library and its guests start no named runs; those of `starts`, with the
benchmarks', start trainers and scripts in runs with names of their own. Slurm's tests are a part, and
those of SSH and of containers another; one that is marked `alone` waits for the other part's current test
(tests/testbed/plugin.py).
Not by pytest-xdist: its groups do nothing under pytest 9.2.

Seven parts on few cores make a machine slow, and of thousands of tests with real processes one may have a race. When
all parts have ended, at most `RERUNS` failures are run again with the machine to themselves. One that passes then
doesn't fail the gate; the last lines name it, because it has a fault to fix.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading

HOSTS = ("tests/containers", "tests/launcher/contained", "tests/launcher/ssh")
STARTS = ("tests/launcher/compare", "tests/launcher/script", "tests/hydra_plugins")
PLANS = ("tests/launcher/config", "tests/launcher/plan")
RERUNS = 6  # more failures than these are no accident
TESTS_FAILED = 1  # pytest's exit status
CRASH = "Fatal Python error"
CRASH_LINES = 10
"""Of the stack of a crash, its innermost call first, that the summary repeats."""
NOT_ENDED = 70  # of a part whose process became another one, or ended by itself, in the middle of its tests
_FAILURE = re.compile(r"(?:FAILED|ERROR) \S")  # an error that a test logged has more blanks
_SUMMARY = re.compile(r"\b(passed|skipped|deselected|no tests ran)\b.* in [\d.]+s")


def tests(*arguments: str) -> list[str]:
    return ["pytest", "--durations=15", *arguments]


def without(*folders: str) -> list[str]:
    return [f"--ignore={folder}" for folder in folders]


PARTS = {
    "starts": tests("-m", "not testbed", *STARTS, *PLANS, "tests/benchmarks"),
    "rest": tests(
        "-m", "not testbed", *without("tests/amp_launcher", "tests/guests", "tests/benchmarks", *STARTS, *PLANS)
    ),
    "torch": tests("tests/amp_launcher/torch"),
    "library": tests("tests/amp_launcher", *without("tests/amp_launcher/torch")),
    "guests": tests("tests/guests"),
    "slurm": tests("-m", "testbed", *without("tests/amp_launcher", "tests/guests", "tests/benchmarks", *HOSTS)),
    "hosts": tests("-m", "testbed", *HOSTS),
    "types": ["mypy"],
}
"""What a part's lines begin with, and the module of Python that is run with its arguments."""


class Part:
    """One process, its exit status, and the lines that its summary repeats."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.argv = [sys.executable, "-m", *PARTS[name]]
        if PARTS[name][0] == "pytest":
            self.argv += ["-o", f"cache_dir=.pytest_cache/{name}", *arguments]
        self.failures: list[str] = []
        self.crash: list[str] = []
        self.last_line = ""
        self.status = 0

    def run(self, *options: str) -> None:
        """Run the part's tests and print each line as it comes."""
        self.failures, self.last_line = [], ""
        ended = self.argv[2] != "pytest"
        with subprocess.Popen(
            [*self.argv, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(f"{self.name:7} | {line}")
                sys.stdout.flush()
                if _FAILURE.match(line):
                    self.failures.append(line)
                if self.crash or CRASH in line:
                    self.crash.append(line)
                self.last_line = line
                ended = ended or _SUMMARY.search(line) is not None
        self.status = process.returncode if ended or process.returncode else NOT_ENDED

    def causes(self) -> int:
        """The number of its failures. A fixture that fails takes with it all tests of the file that share it."""
        errors = {line.partition("::")[0] for line in self.failures if line.startswith("ERROR")}
        return len(errors) + sum(not line.startswith("ERROR") for line in self.failures)

    def run_failed(self) -> list[str]:
        """Run the failed tests again. Those that passed now."""
        before = self.failures
        self.run("--last-failed", "--last-failed-no-failures=none")
        return before if self.status == 0 else []


def main(arguments: list[str]) -> int:
    """Run all parts with these arguments of pytest's. The first exit status that is not 0, else 0.

    The last lines name the tests that failed in any part: the part that ended first may be far above.
    """
    parts = [Part(name, arguments) for name in PARTS]
    threads = [threading.Thread(target=part.run) for part in parts]
    for thread in threads:
        thread.start()
    interrupted = False
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:  # every pytest got the signal as well, and prints its summary
        interrupted = True
        for thread in threads:
            thread.join()
    failed = [part for part in parts if part.status == TESTS_FAILED and part.failures]
    unsteady = []
    if not interrupted and sum(part.causes() for part in failed) <= RERUNS:
        unsteady = [line for part in failed for line in part.run_failed()]
    for part in parts:
        for line in [*part.failures, *part.crash[:CRASH_LINES], part.last_line, f"exit status {part.status}\n"]:
            print(f"{part.name:7} | {line}", end="")
    for line in unsteady:
        print(f"failed beside other tests and passed alone: {line}", end="")
    return next((part.status for part in parts if part.status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
