"""Lines of cluster.setup in the script of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.runs import store
from tests.launcher.stand_in import lay

FAILING = [("false",), ("export A=1", "module() { return 3; }", "module load cuda"), ("no-such-program",)]
HARMLESS = [
    ("[ -d /no/such ] && exit 9", "if false; then exit 9; fi", "export A=1"),
    ('PS1="(env) $PS1"', "[ -z $NO_SUCH_VARIABLE ]"),
]


@pytest.mark.parametrize("lines", [*FAILING, *HARMLESS], ids="; ".join)
def test_a_line_of_setup_that_fails_ends_the_run_and_a_test_or_an_unset_variable_does_not(
    tmp_path: Path, program: Path, lines: tuple[str, ...]
) -> None:
    _, folder = lay(tmp_path, program, setup=lines)
    code = subprocess.run(["bash", str(folder / "run.sh")]).returncode
    status = store.read_or_empty(folder / "status.json")
    assert (code == 0, status["state"]) == ((True, "done") if lines in HARMLESS else (False, "failed"))
    if lines in FAILING:
        assert status["reason"].startswith("a line of cluster.setup failed with exit code ")
        assert "error: cluster.setup: `" in (folder / "attempts/1/stderr.log").read_text()
        assert not (tmp_path / "dump").exists()
