"""The `testbed` fixture: everything real that a test may need, or a skip that says how to get it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import bed, facts, parts, slurm
from tests.testbed.processes import running

HOW = "run `make testbed` as root"
REQUIRED = "TESTBED_REQUIRED"  # set to 1 where a missing part is a failure, as in continuous integration


@pytest.fixture(scope="session")
def testbed() -> Iterator[facts.Testbed]:
    """The running testbed. Skips where it isn't up; fails there if TESTBED_REQUIRED=1 is in the environment."""
    running = facts.gather(bed.find())
    if running is None or not running.up:
        dead = [] if running is None else [name for name, pid in running.servers.items() if pid is None]
        reason = f"the testbed is not up{': no ' + ', '.join(dead) if dead else ''}; {HOW}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{reason} ({REQUIRED}=1)", pytrace=False)
        pytest.skip(reason)
    yield running


@pytest.fixture(autouse=True)
def _fit_testbed(request: pytest.FixtureRequest) -> None:
    """A server that died is started again before the next test, and a node that a test left drained is resumed, with a
    warning that says why it was: a fault's after-effect is one finding, not twenty."""
    if "testbed" in request.fixturenames:
        bench = bed.Bed(Path(request.getfixturevalue("testbed").folder))
        dead = [name for name in facts.SERVERS if running(bench, name) is None]
        if dead:
            said = "\n".join(bed.last_lines(bench.log(name)) for name in dead)
            warnings.warn(f"before this test, {', '.join(dead)} of the testbed was dead: {said}", stacklevel=1)
            parts.revive(bench)
        if why := slurm.unfit(bench):
            warnings.warn(f"before this test, a node of the testbed took no jobs: {why}", stacklevel=1)
            slurm.resume_nodes(bench)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests of several pytest processes share the testbed; one that is marked `alone` waits until it has all of it."""
    folder = bed.find().folder
    if item.get_closest_marker("testbed") is None or not folder.exists():
        return (yield)
    with _turn(folder, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextlib.contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Whoever waits to be alone keeps later ones from starting."""
    with open(folder / "tests-waiting.lock", "w") as waiting, open(folder / "tests.lock", "w") as tests:
        fcntl.flock(waiting, fcntl.LOCK_EX)
        fcntl.flock(tests, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(waiting, fcntl.LOCK_UN)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the fixture carries the mark, for `-m testbed` and `-m 'not testbed'`."""
    for item in items:
        if "testbed" in getattr(item, "fixturenames", ()):
            item.add_marker("testbed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    # A skip's report is (file, line, reason).
    count = sum(isinstance(report.longrepr, tuple) and HOW in report.longrepr[2] for report in reports)
    if count:
        terminalreporter.write_line(f"{count} tests need the testbed and were skipped: {HOW}, then run them again")
