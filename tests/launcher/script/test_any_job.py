"""Jobs without a mode: scripts at amp=none, and programs that are not Python."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.config.paths import expanded
from tests.launcher import warm
from tests.launcher.run_folders import called

EVALUATE = """\
import sys
import torch
from amp_launcher import job
print("mean", torch.ones(4).mean().item(), torch.is_autocast_enabled("cpu"))
job.log(1, loss=0.5)
sys.exit(int(sys.argv[1]))
"""
PREPARE = """\
#!/bin/sh
[ -z "$LAUNCHER_CHECKPOINT_DIR" ] && exit 9
. "$(dirname "$0")/helper.sh"
echo "attempt with $*" >> attempts.txt
exit "$1"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "evaluate.py").write_text(EVALUATE)
    (folder / "prepare.sh").write_text(PREPARE)
    (folder / "prepare.sh").chmod(0o755)
    (folder / "helper.sh").write_text("echo helped\n")
    (folder / "data.txt").write_text("data")
    return folder


def launch(project: Path, *words: str) -> tuple[int, str]:
    """The exit code, and what is printed."""
    done = called(*words, cwd=project)
    return done.returncode, done.stdout + done.stderr


def test_a_script_without_a_mode_ends_as_it_does_alone_and_nothing_is_said_of_a_proof(
    project: Path, root: Path
) -> None:
    words = ("evaluate.py", "amp=none", f"run_root={root}", f"python={warm.python()}")
    ended, printed = launch(project, *words, "--", "0")
    (run,) = root.glob("2*")
    result = json.loads((run / "result.json").read_text())
    assert ended == 0, printed
    assert (result["status"], result["observed"]) == ("done", {})
    assert "mean 1.0 False" in printed and "proof" not in printed and "amp=o0" not in printed
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["loss"] == 0.5


def test_a_program_runs_from_the_snapshot_and_resumed_gets_its_further_arguments(project: Path, root: Path) -> None:
    words = ("cmd", f"run_root={root}", "script.resume_arguments=[--again]", "--", "./prepare.sh")
    ended, printed = launch(project, *words, "3")
    assert ended == 1 and "helped" in printed and "exit code 3" in printed
    (run,) = root.glob("2*")
    assert run.name in printed and "prepare amp=none -- 3" in printed
    assert launch(project, "resume", str(run))[0] == 1
    assert (project / "attempts.txt").read_text() == "attempt with 3\nattempt with 3 --again\n"
    assert launch(project, *words, "0")[0] == 0


REFUSED = {
    "amp=none": "recipe=mnist trains in a mode; say amp=o0",
    "evaluate.py amp=none require_proof=true": "require_proof=true with amp=none, at which nothing is applied",
    "evaluate.py amp=none tf32=true": "tf32=true with amp=none",
    "evaluate.py amp=none train.precision=launcher": "train.precision=launcher with amp=none",
    "evaluate.py amp=none profile=framework": "amp=none observes none; say profile=nsys",
    "compare evaluate.py amp=none,o1": "so it can't be compared; say amp=o0",
    "evaluate.py train.command=true": "say `cmd -- FILE`",
    "./prepare.sh": "is not Python: its name ends in .sh; to run it as it is: cmd -- ./prepare.sh",
    "cmd": "cmd needs a command, which goes after --: cmd -- ./prepare.sh",
    "cmd ./prepare.sh 0": "./prepare.sh: the command goes after --: cmd -- ./prepare.sh",
    "cmd -- make data": "make: there is no such file here; a program such as make goes into a file that calls it",
    "cmd -- ./data.txt": "./data.txt is not executable: chmod +x ./data.txt",
    "cmd amp=o1 -- ./prepare.sh 0": "no mode can be applied to a program that is not Python",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_job_without_a_mode_cannot_have_is_refused_in_one_line(
    line: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert not out and error.count("\n") == 1 and REFUSED[line] in error
    assert not os.path.exists(expanded("~/launcher-runs"))


def test_a_program_has_to_name_what_runs_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    (project / "data.txt").chmod(0o755)
    assert main(["cmd", "--plan", "--", "./data.txt"]) == 2
    assert "its first line should be #!/bin/sh" in capsys.readouterr().err
    assert main(["cmd", "--plan", "--", "./prepare.sh", "0"]) == 0
    assert "script/prepare.sh 0\n" in capsys.readouterr().out
