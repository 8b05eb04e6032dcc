"""The `testbed` fixture: everything real that a test may need, or a skip that says how to get it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.testbed import bed, facts

HOW = "run `make testbed` as root"
REQUIRED = "TESTBED_REQUIRED"  # set to 1 where a missing part is a failure, as in continuous integration


@pytest.fixture(scope="session")
def testbed() -> Iterator[facts.Testbed]:
    """The running testbed. Skips where it isn't up; fails there if TESTBED_REQUIRED=1 is in the environment."""
    found = facts.gather(bed.find())
    if found is None or not found.up:
        dead = [] if found is None else [name for name, pid in found.servers.items() if pid is None]
        reason = f"the testbed is not up{': no ' + ', '.join(dead) if dead else ''}; {HOW}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{reason} ({REQUIRED}=1)", pytrace=False)
        pytest.skip(reason)
    yield found


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
