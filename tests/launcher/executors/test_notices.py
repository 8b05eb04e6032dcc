"""`notify=COMMAND`: told once of what became of a run or a sweep, and never with secrets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.executors import notices, stopping
from launcher.runs import processes, selection, store
from tests import patience
from tests.launcher import warm
from tests.launcher.run_folders import SWEEP, finished, make, state, submit, sweep, until
from tests.launcher.slurm.bench import ended
from tests.launcher.slurm.submitted import Submitted, submitted_by

BARE = ("recipe=script", "train.bare=true", "train.precision=script", "gpus=0", "telemetry.every=0")
SECRET = "hunter2-hunter2"
TELLING = '#!/bin/sh\nenv >>"$1.environment"\ncat >>"$1"\n'
"""Writes its environment, then the notice: the tests wait for the notice."""


def program(folder: Path, text: str = TELLING) -> Path:
    path = folder / "tell"
    path.write_text(text)
    path.chmod(0o700)
    return path


def told(file: Path) -> list[dict[str, Any]]:
    """The notices that a command got, one after another."""
    text, notices = file.read_text() if file.exists() else "", []
    while text.strip():
        notice, end = json.JSONDecoder().raw_decode(text)
        notices.append(notice)
        text = text[end:].lstrip()
    return notices


def words(tmp_path: Path, root: Path, text: str, *more: str) -> list[str]:
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/train.py").write_text(text)
    command = f"notify={program(tmp_path)} {tmp_path / 'told'}"
    return [*BARE, f"script={tmp_path}/code/train.py", f"run_root={root}", command, *more]


def runs(root: Path) -> list[Path]:
    return [root / name for name in selection.run_names(str(root))]


def newest(root: Path) -> Path:
    return runs(root)[-1]


@pytest.mark.parametrize("detach", ["true", "false"])
def test_the_end_is_told_once_with_the_reason_and_without_secrets(root: Path, tmp_path: Path, detach: str) -> None:
    """By the run's script where nobody waits, else by the launcher that does."""
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    fails = "import os, pathlib\nraise SystemExit(3)"
    main(words(tmp_path, root, fails, f"detach={detach}", f"secrets.TOKEN={tmp_path / 'token'}", f"env.SEEN={SECRET}x"))
    folder = newest(root)
    until(lambda: told(tmp_path / "told") and (folder / "attempts/1/told-ended.json").exists())
    (notice,) = told(tmp_path / "told")
    assert (notice["event"], notice["run"], notice["status"]["state"]) == ("ended", folder.name, "failed")
    assert notice["text"] == f"{folder.name} failed: the script ended with exit code 3"
    environment = (tmp_path / "told.environment").read_text()
    assert SECRET not in json.dumps(notice) and SECRET not in environment
    assert not list(folder.glob("attempts/*/notice-*"))


def test_a_reason_that_holds_a_secret_is_told_without_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    leaks = (
        "import json, os\nrun = os.path.dirname(os.environ['LAUNCHER_CHECKPOINT_DIR'])\n"
        "failed = {'reason': 'refused ' + os.environ['TOKEN']}\n"
        "json.dump(failed, open(run + '/attempts/1/failed.json', 'w'), indent=2)\n"
        "raise SystemExit(1)"
    )
    main(words(tmp_path, root, leaks, "detach=true", f"secrets.TOKEN={tmp_path / 'token'}"))
    until(lambda: told(tmp_path / "told"))
    assert told(tmp_path / "told")[0]["text"].endswith(" failed: refused ***")
    assert SECRET not in (newest(root) / "attempts/1/told-ended.json").read_text()


def test_a_sweep_is_told_once_when_its_last_run_has_ended_and_again_after_a_resume(root: Path, tmp_path: Path) -> None:
    text = "import sys\nsys.exit(int(sys.argv[1]))"
    main([*words(tmp_path, root, text, "sweep.code=0,3,4", "detach=true"), "--", "{code}"])
    sweep = newest(root).name.rpartition("-")[0]
    until(lambda: told(tmp_path / "told"))
    main(["resume", sweep, f"run_root={root}"])  # which waits for them
    until(lambda: len(told(tmp_path / "told")) == 2)
    for notice in told(tmp_path / "told"):
        assert notice["sweep"] == sweep and notice["text"] == f"{sweep}: 1 done, 2 failed"
        assert [run["state"] for run in notice["runs"]] == ["done", "failed", "failed"]


def test_a_command_that_never_ends_delays_neither_the_run_nor_the_next(root: Path, tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'began')!r}, 'a').write('x')"
    line = words(tmp_path, root, text, "sweep.n=1,2", "detach=true")
    program(tmp_path, '#!/bin/sh\necho $$ >"$1"\nexec sleep 1000\n')
    main([*line, "--", "{n}"])
    until(lambda: all(state(run).name == "done" for run in runs(root)))
    until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text().strip())
    assert (tmp_path / "began").read_text() == "xx"
    os.kill(int((tmp_path / "told").read_text()), signal.SIGKILL)
    logs = [run / "attempts/1/notify.log" for run in runs(root)]
    until(lambda: any("ended with exit code 137" in log.read_text() for log in logs if log.exists()))


def test_a_run_whose_script_was_killed_is_told_by_the_launcher_that_waits(root: Path, tmp_path: Path) -> None:
    line = words(tmp_path, root, "import time; time.sleep(1000)")
    waiting = subprocess.Popen([sys.executable, "-m", "launcher", *line], stdout=subprocess.DEVNULL)
    until(lambda: selection.run_names(str(root)) and state(newest(root)).name == "running")
    status = json.loads((newest(root) / "status.json").read_text())
    os.killpg(status["process"]["pid"], signal.SIGKILL)
    assert waiting.wait(patience.scaled(60)) == 1
    (notice,) = told(tmp_path / "told")
    assert (notice["run"], notice["state"]) == (newest(root).name, "lost")
    assert notice["text"] == f"{notice['run']} lost: {notice['reason']}"
    assert (notice["status"]["state"], notice["result"]) == ("running", None)
    plan = json.loads((newest(root) / "plan.json").read_text())
    assert (notice["name"], notice["words"], notice["folder"]) == (plan["name"], plan["words"], str(newest(root)))


def test_a_sweep_of_which_a_run_never_began_is_told_once(root: Path, tmp_path: Path) -> None:
    text = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)"
    line = [*words(tmp_path, root, text, "sweep.n=1,2"), "--", "{n}"]
    waiting = subprocess.Popen([sys.executable, "-m", "launcher", *line], stdout=subprocess.DEVNULL)
    until(lambda: len(selection.run_names(str(root))) == 2 and any(state(run).name == "running" for run in runs(root)))
    (second,) = (run for run in runs(root) if state(run).name == "queued")
    assert main(["cancel", second.name, f"run_root={root}"]) == 0
    (tmp_path / "go").touch()
    assert waiting.wait(patience.scaled(60)) == 1
    (notice,) = told(tmp_path / "told")
    assert notice["text"] == f"{notice['sweep']}: 1 done, 1 cancelled"
    assert [run["status"] and run["status"]["state"] for run in notice["runs"]] == ["done", None]


@pytest.mark.parametrize("is_sweep", [False, True])
def test_what_never_began_is_told_of_once_and_begins_with_its_first_attempt(
    root: Path, tmp_path: Path, is_sweep: bool
) -> None:
    folders = sweep(root, 2, make) if is_sweep else [make(root)]
    for folder in folders:
        submit(folder, processes.Identity(processes.host(), processes.boot(), 2**22 + 1, 1))
        store.write_json(folder / "plan.json", {"notify": [str(program(tmp_path)), str(tmp_path / "told")]})
    with notices.told(folders):
        for folder in folders:
            stopping.request_cancel(folder)
    with notices.told(folders):
        pass
    (notice,) = told(tmp_path / "told")
    ended = f"{SWEEP}: 2 cancelled" if is_sweep else f"{folders[0].name} cancelled: before it started"
    assert notice["text"] == ended
    assert not any(map(store.attempts, folders))


def test_a_run_that_is_removed_is_told_of_by_nobody(root: Path, tmp_path: Path) -> None:
    folder = finished(root)
    store.write_json(folder / "plan.json", {"notify": [str(program(tmp_path)), str(tmp_path / "told")]})
    with notices.told([folder]):
        folder.rename(tmp_path / "trash")
    assert not folder.exists() and not told(tmp_path / "told")


@pytest.mark.parametrize(
    ("command", "because"),
    [
        ("/no/such/program", "has no program /no/such/program that you can run"),
        ("no-such-program-here -x", "has no program no-such-program-here that you can run"),
        ("/etc/passwd", "has no program /etc/passwd that you can run"),
        ("tell 'it", "No closing quotation"),
        ("", "names no program"),
    ],
)
def test_a_command_that_is_not_there_is_refused_before_anything_is_left(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, because: str
) -> None:
    assert main([*words(tmp_path, root, ""), f"notify={command}"]) == 2
    error = capsys.readouterr().err
    assert f"notify={command}" in error and because in error
    assert selection.run_names(str(root)) == []


HANGS = """
import time, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    if step == 3:
        time.sleep(1000)
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_run_that_hangs_is_told_of_while_it_does_and_once_more_at_its_end(root: Path, tmp_path: Path) -> None:
    line = words(tmp_path, root, HANGS, "detach=true", "amp=o0", f"python={warm.python()}")
    line.append(f"watchdog.after={patience.scaled(2):g}")
    main([word for word in line if not word.startswith("train.")])
    until(lambda: told(tmp_path / "told"))
    (notice,) = told(tmp_path / "told")
    assert notice["event"] == "hung" and notice["ranks"][0]["where"] == "at train.py:7"
    assert main(["cancel", "--now", newest(root).name, f"run_root={root}"]) == 0
    assert json.loads((newest(root) / "attempts/1/told-hung.json").read_text()) == notice


def on_slurm(root: Path) -> dict[str, tuple[str, ...]]:
    (root / "code").mkdir()
    (root / "code/train.py").write_text("raise SystemExit(3)")
    command = f"notify={program(root)} {root / 'told'}"
    return {"job": ("recipe=script", f"script={root}/code/train.py", *BARE[1:3], "gpus=0", command)}


jobs = submitted_by(on_slurm)


def test_a_job_of_slurm_tells_by_itself_where_nobody_waits(jobs: Submitted) -> None:
    folder = jobs.folder("job")
    assert ended(folder).name == "failed"
    until(lambda: told(folder.parent / "told") or told(folder.parent.parent / "told"))
    (notice,) = told(folder.parent / "told") or told(folder.parent.parent / "told")
    assert notice["text"] == f"{folder.name} failed: the script ended with exit code 3"
