"""Lines of cluster.setup in the script of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.runs import store
from tests.launcher.stand_in import lay


@pytest.mark.parametrize(
    "lines", [("false",), ("export A=1", "module() { return 3; }", "module load cuda"), ("no-such-program",)]
)
def test_a_line_of_setup_that_fails_ends_the_run(tmp_path: Path, program: Path, lines: tuple[str, ...]) -> None:
    _, folder = lay(tmp_path, program, setup=lines)
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode != 0
    status = store.read_or_empty(folder / "status.json")
    assert status["state"] == "failed"
    assert status["reason"].startswith("a line of cluster.setup failed with exit code ")
    assert "error: cluster.setup: `" in (folder / "attempts/1/stderr.log").read_text()
    assert not (tmp_path / "dump").exists()


def test_a_test_within_setup_may_fail(tmp_path: Path, program: Path) -> None:
    lines = ("[ -d /no/such ] && exit 9", "if false; then exit 9; fi", "export A=1")
    _, folder = lay(tmp_path, program, setup=lines)
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == 0
    assert store.read_or_empty(folder / "status.json")["state"] == "done"


def test_setup_may_read_a_variable_that_is_not_set(tmp_path: Path, program: Path) -> None:
    _, folder = lay(tmp_path, program, setup=('PS1="(env) $PS1"', "[ -z $NO_SUCH_VARIABLE ]"))
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == 0
    assert store.read_or_empty(folder / "status.json")["state"] == "done"
