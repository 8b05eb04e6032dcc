"""`restart.max`: what is started again by itself, from where, how often, and what never is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.runs import selection, store
from launcher.runs.states import State
from tests import patience
from tests.launcher import warm
from tests.launcher.run_folders import state, until

BARE = ("train.bare=true", "train.precision=script", "amp=o0")

STEPS = """
import os, time, torch
from amp_launcher import job
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
path, begin = job.checkpoint_dir() / "net.pt", 0
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    begin = saved["step"]
attempt = int(os.environ["LAUNCHER_ATTEMPT"])
print("begun at", begin, flush=True)
for step in range(begin, 6):
    FAULT
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save({"net": net.state_dict(), "step": step + 1}, path)
    job.log(step + 1, loss=0.5)
"""
NCCL = "RuntimeError('NCCL error in: ProcessGroupNCCL.cpp:94, ncclRemoteError: a peer has gone')"


def run(tmp_path: Path, root: Path, text: str, *words: str) -> Path:
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/train.py").write_text(text)
    script = f"script={tmp_path}/code/train.py"
    places = (f"run_root={root}", f"python={warm.python()}", "gpus=0", "telemetry.every=0", "detach=true")
    assert main(["recipe=script", script, *places, *words]) == 0
    return root / selection.run_names(str(root))[-1]


def ended(folder: Path) -> State:
    return until(lambda: seen if (seen := state(folder)).finished else None, 120)


def test_a_hang_starts_the_run_again_from_its_last_checkpoint_until_it_is_done(root: Path, tmp_path: Path) -> None:
    text = STEPS.replace("FAULT", "step == 3 and attempt == 1 and time.sleep(1000)")
    watch = (f"watchdog.after={patience.scaled(5):g}", "watchdog.action=restart", "restart.max=2")
    folder = run(tmp_path, root, text, "amp=o0", *watch)
    assert ended(folder)._replace(started=None, ended=None, before=0) == State("done", attempt=2, exit_code=0)
    assert "begun at 3" in (folder / "attempts/2/stdout.log").read_text()
    first = store.read_or_empty(folder / "attempts/1" / store.ENDED)
    assert (first["state"], first["reason"]) == ("requeued", "it took no step any more after step 3; restart 1 of 2")
    assert json.loads((folder / "result.json").read_text())["attempts"] == 2


def test_what_hangs_at_the_same_step_twice_has_failed(root: Path, tmp_path: Path) -> None:
    text = STEPS.replace("FAULT", "step == 3 and time.sleep(1000)").replace('"step": step + 1', '"step": step')
    watch = (f"watchdog.after={patience.scaled(5):g}", "watchdog.action=restart", "restart.max=5")
    folder = run(tmp_path, root, text, "amp=o0", *watch)
    seen = ended(folder)
    # It saves before each step, so that its second attempt takes one too: without a step there is an hour.
    assert (seen.name, seen.attempt) == ("failed", 2)
    assert seen.reason.endswith("; not restarted: it failed at step 3 twice")


def test_an_error_of_nccl_restarts_as_often_as_was_allowed(root: Path, tmp_path: Path) -> None:
    text = f"""
import os, pathlib
kept = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "step")
kept.write_text(str(int(kept.read_text()) + 1) if kept.exists() else "1")
raise {NCCL}
"""
    folder = run(tmp_path, root, text, *BARE, "restart.max=3")
    seen = ended(folder)
    assert (seen.name, seen.attempt) == ("failed", 4)
    assert seen.reason.endswith("; not restarted: 3 of 3 restarts used (restart.max)")
    assert main(["resume", folder.name, f"run_root={root}"]) == 1
    assert ended(folder).attempt == 8  # a resume counts anew


def test_three_attempts_without_progress_end_it(root: Path, tmp_path: Path) -> None:
    text = f"""
import os, pathlib
kept = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "step")
kept.exists() or kept.write_text("1")
raise {NCCL}
"""
    seen = ended(run(tmp_path, root, text, *BARE, "restart.max=9"))
    assert (seen.name, seen.attempt) == ("failed", 3)
    assert seen.reason.endswith("; not restarted: three attempts made no progress")


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        (f"raise {NCCL}", ("restart.max=3",), "; not restarted: there is no checkpoint, and it would start over"),
        ("raise RuntimeError('a mistake of the script')", ("restart.max=3", "script.resume_arguments=[--again]"), "1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ("restart.max=3",), "killed by signal 9"),
        (f"raise {NCCL}", ("script.resume_arguments=[--again]",), "1"),
    ],
)
def test_other_failures_and_those_with_nothing_to_resume_from_end_it(
    root: Path, tmp_path: Path, text: str, words: tuple[str, ...], why: str
) -> None:
    seen = ended(run(tmp_path, root, text, *BARE, *words))
    assert (seen.name, seen.attempt) == ("failed", 1)
    assert seen.reason.endswith(why)


def test_resume_arguments_say_how_to_restart_without_a_checkpoint(root: Path, tmp_path: Path) -> None:
    text = f"import sys\nif '--again' not in sys.argv: raise {NCCL}\n"
    folder = run(tmp_path, root, text, *BARE, "restart.max=1", "script.resume_arguments=[--again]")
    assert (ended(folder).name, state(folder).attempt) == ("done", 2)


@pytest.mark.parametrize(("verdict", "attempts"), [("contradicted", 1), ("unknown", 2)])
def test_a_mode_that_was_contradicted_never_starts_again(
    root: Path, tmp_path: Path, verdict: str, attempts: int
) -> None:
    text = f"""
import json, os, pathlib
kept = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "step")
kept.write_text("1")
result = {{"schema": 1, "attempts": 1, "status": "failed", "observed": {{"verdict": VERDICT}}}}
(kept.parents[1] / "result.json").write_text(json.dumps(result, indent=2))
raise {NCCL}
"""
    folder = run(tmp_path, root, text.replace("VERDICT", repr(verdict)), *BARE, "restart.max=1")
    seen = ended(folder)
    assert (seen.name, seen.attempt) == ("failed", attempts)


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (("watchdog.action=restart",), "watchdog.action=restart needs restart.max=N"),
        (("restart.max=-1",), "restart.max=-1 must be at least 0"),
    ],
)
def test_what_contradicts_itself_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], because: str
) -> None:
    (tmp_path / "train.py").write_text("")
    assert main(["recipe=script", f"script={tmp_path}/train.py", f"run_root={root}", "gpus=0", *words]) == 2
    assert because in capsys.readouterr().err
