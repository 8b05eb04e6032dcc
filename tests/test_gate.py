"""The gate runs every test, and a failed one again, alone, and names it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests import __main__ as gate

PASSES_THE_SECOND_TIME = f"""
import logging
from pathlib import Path
def test_one():
    for _ in range({gate.RERUNS + 1}):
        logging.error("a connection ended")
    mark = Path(__file__).with_name("ran")
    ran = mark.exists()
    mark.touch()
    assert ran
def test_two(): pass
"""
ALWAYS_FAILS = "def test_one(): raise ValueError('always')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(gate, "PARTS", {"first": ["pytest", "test_first.py"], "second": ["pytest", "test_second.py"]})
    (tmp_path / "test_second.py").write_text("def test_one(): pass\n")
    return tmp_path


def test_one_that_passes_alone_fails_no_gate_and_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_first.py").write_text(PASSES_THE_SECOND_TIME)
    assert gate.main([]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("failed beside other tests and passed alone: FAILED test_first.py::test_one")


def test_one_that_fails_twice_fails_the_gate(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_first.py").write_text(ALWAYS_FAILS)
    assert gate.main([]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("first   | FAILED test_first.py::test_one") for line in lines[-6:])
    assert not any("passed alone" in line for line in lines)


def test_many_failures_are_not_run_again(folder: Path) -> None:
    test = "def test_{0}():\n    with open('runs', 'a') as runs: runs.write('x')\n    assert False\n"
    (folder / "test_first.py").write_text("".join(test.format(number) for number in range(gate.RERUNS + 1)))
    assert gate.main([]) == 1
    assert len((folder / "runs").read_text()) == gate.RERUNS + 1


def test_a_fixture_that_fails_many_tests_is_one_failure(folder: Path) -> None:
    (folder / "test_first.py").write_text(
        "import pytest\nfrom pathlib import Path\n\n@pytest.fixture(scope='module')\ndef made():\n"
        "    if not Path('mark').exists():\n        Path('mark').touch()\n        raise OSError\n"
        + "".join(f"def test_{number}(made): pass\n" for number in range(gate.RERUNS + 1))
    )
    assert gate.main([]) == 0


def test_a_part_that_cannot_collect_its_tests_fails_the_gate(folder: Path) -> None:
    (folder / "test_first.py").write_text("import no_such_module\n")
    assert gate.main([]) == 2


def test_a_part_that_ends_in_the_middle_of_its_tests_fails_the_gate(folder: Path) -> None:
    (folder / "test_first.py").write_text("import os\ndef test_one(): os.execvp('true', ['true'])\n")
    assert gate.main([]) == gate.NOT_ENDED


def test_a_part_that_crashes_fails_the_gate_and_the_summary_names_the_test(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_first.py").write_text("import os\ndef test_one(): os.abort()\n")
    assert gate.main([]) == -signal.SIGABRT
    lines = capfd.readouterr().out.splitlines()
    assert any("test_first.py" in line and line.endswith("in test_one") for line in lines[-16:])
