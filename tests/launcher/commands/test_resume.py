"""`resume`: what may change, what may not, and what the folder is afterwards."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands import resume, shell
from launcher.errors import UsageError
from launcher.executors import submission
from launcher.executors.backends import states_of
from launcher.executors.local import start as local_start
from launcher.executors.plan_changes import as_recorded, changes
from launcher.executors.resume import LOCK, resume_here
from launcher.plan.record import to_json
from launcher.plan.resolve import resolve
from launcher.runs import processes, run_roots, selection
from launcher.runs.store import Run, plan_path
from launcher.ui.summary import elapsed
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import SWEEP, finished, until
from tests.launcher.stand_in import lay

OTHER = "20260102-030406-calm-owl"
FIRST = "sys.exit(1) if os.environ['LAUNCHER_ATTEMPT'] == '1' else 0"


@pytest.fixture
def failed(tmp_path, program):
    """A run whose first attempt failed and whose second will not."""
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": FIRST})
    submission.start([folder], [plan])
    assert main(["watch", folder.name]) == 1
    return folder


def record(folder, name):
    return json.loads((folder / name).read_text())


def test_the_time_of_a_run_counts_all_attempts(tmp_path, program):
    behaviour = "time.sleep({'1': 2.2, '2': 0.1, '3': 0}[os.environ['LAUNCHER_ATTEMPT']]); " + FIRST
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    began = time.time()
    submission.start([folder], [plan])
    assert main(["watch", folder.name]) == 1
    for attempt, least in (("2", 2), ("3", 2)):
        assert main(["resume", folder.name, f"steps={attempt}"]) == 0
        status = record(folder, "status.json")
        most = time.time() - began + int(attempt)  # each attempt in whole seconds
        assert status["attempt"] == int(attempt) and least <= status["before"] <= most
    seen = states_of([Run(str(folder.parent), folder.name)])[0].state
    assert seen.before >= 2 and (elapsed(seen, 0) or 0) >= 2


def test_a_killed_attempt_counts_until_its_last_line(tmp_path, program):
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": "0"})
    logs = folder / "attempts" / "1"
    logs.mkdir(parents=True)
    (logs / "stdout.log").touch()
    os.utime(logs / "stdout.log", (1767323145 + 60, 1767323145 + 60))  # a minute after it started
    running = {"state": "running", "attempt": 1, "started": "2026-01-02T03:05:45Z", "before": 7, "ended": None}
    (folder / "status.json").write_text(json.dumps(running))
    submission.start([folder], [plan])
    assert main(["watch", folder.name]) == 0
    assert record(folder, "status.json")["before"] == 67


def test_a_change_is_the_plan_of_its_attempt_and_the_first_plan_stays(failed, tmp_path, capsys):
    first = (failed / "plan.json").read_text()
    assert main(["resume", failed.name, "epochs=40", "checkpoint.every=7"]) == 0
    assert main(["resume", failed.name, "epochs=41"]) == 0
    assert (failed / "plan.json").read_text() == first
    second, third = (record(failed, f"attempts/{attempt}/plan.json")["settings"] for attempt in (2, 3))
    assert (second["epochs"], third["epochs"]) == (40, 41)
    assert second["checkpoint"]["every"] == third["checkpoint"]["every"] == 7
    assert shell._of_run([failed.name], []).plan.settings["epochs"] == 41
    spec = record(tmp_path, "dump")["env"]["LAUNCHER_SPEC"]
    assert spec == f"{failed}/attempts/3/plan.json"
    capsys.readouterr()
    assert main(["ls", failed.name]) == 0
    assert "checkpoint.every=7 epochs=41" in capsys.readouterr().out


@pytest.fixture
def begun_before(failed):
    """A run whose code knew two keys less."""
    plan = record(failed, "plan.json")
    del plan["settings"]["steps_per_execution"], plan["settings"]["checkpoint"]["keep"]
    (failed / "plan.json").write_text(json.dumps(plan))
    return failed


def test_a_run_begun_with_older_code_goes_on_as_that_code_reads_it(begun_before):
    first = record(begun_before, "plan.json")
    assert main(["resume", begun_before.name, "steps=9"]) == 0
    now = record(begun_before, "attempts/2/plan.json")
    assert now == {**first, "settings": {**first["settings"], "epochs": None, "steps": 9}, "words": now["words"]}
    assert "steps=9" in now["words"]


def test_a_key_that_the_code_of_a_run_does_not_know_is_refused_before_anything_is_queued(begun_before, capsys):
    files = sorted(begun_before.rglob("*"))
    assert main(["resume", begun_before.name, "steps=9", "checkpoint.keep=5"]) == 2
    assert f"checkpoint.keep can't change: {begun_before.name} began with code" in capsys.readouterr().err
    assert [path for path in sorted(begun_before.rglob("*")) if path.name != ".resume"] == files


def test_other_setup_lines_are_those_that_run_and_those_of_a_shell(failed, tmp_path):
    assert main(["resume", failed.name, "cluster.setup=['export MENDED=yes']"]) == 0
    assert record(tmp_path, "dump")["env"]["MENDED"] == "yes"
    assert shell._of_run([failed.name], []).plan.setup == ("export MENDED=yes",)


def test_a_damaged_plan_is_named_with_its_file(failed, capsys):
    (failed / "attempts/1/plan.json").write_text('{"schema": 2, "na')
    capsys.readouterr()
    assert main(["resume", failed.name]) == 2
    assert f"its plan can't be read: {failed}/attempts/1/plan.json: " in capsys.readouterr().err


def test_a_run_goes_on_in_its_own_folder_and_once_done_only_with_more_epochs_or_steps(failed, capsys):
    assert main(["resume", failed.name]) == 0
    assert record(failed, "status.json")["attempt"] == 2
    assert list(failed.parent.glob("2*")) == [failed]
    assert main(["resume", failed.name]) == 2
    assert f"{failed.name} is done; say epochs=N or steps=N" in capsys.readouterr().err
    assert main(["resume", failed.name, "steps=9"]) == 0
    before = record(failed, "status.json")
    for word, says in (
        ("steps=9", "has done 9 steps already"),
        ("steps=3", "has done 9 steps already"),
        ("steps=²", "steps=² should be a whole number"),
    ):
        assert main(["resume", failed.name, word]) == 2
        assert says in capsys.readouterr().err
    assert record(failed, "status.json") == before


def test_a_done_script_is_refused_without_naming_keys_that_a_script_lacks(failed, capsys):
    assert main(["resume", failed.name]) == 0
    (failed / "attempts" / "2" / "plan.json").unlink()
    plan = record(failed, "plan.json")
    script = {"file": "script/train.py", "in_image": False, "workdir": "", "arguments": [], "bare": False}
    settings = {**plan["settings"], "recipe": "script", "train": {}}
    (failed / "plan.json").write_text(json.dumps({**plan, "recipe": "script", "script": script, "settings": settings}))
    capsys.readouterr()
    assert main(["resume", failed.name]) == 2
    message = capsys.readouterr().err
    assert "start it anew" in message and "epochs=N" not in message
    assert main(["resume", failed.name, "epochs=99"]) == 2
    assert "epochs can't change when a run is resumed" in capsys.readouterr().err
    assert main(["resume", failed.name, "script.resume_arguments=[--more]"]) == 2
    assert "began with code that has no such key" in capsys.readouterr().err
    plan = record(failed, "plan.json")
    for name in ("plan.json", "attempts/2/plan.json"):
        (failed / name).write_text(json.dumps({**plan, "script": {**script, "resume_arguments": []}}))
    assert main(["resume", failed.name, "script.resume_arguments=[--more,'a b']"]) == 0
    planned = record(failed, "attempts/3/plan.json")
    assert planned["script"]["resume_arguments"] == ["--more", "a b"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("batch=3", "batch can't change when a run is resumed"),
        ("amp=o1", "amp can't change"),
        ("epoch=3", "did you mean epochs?"),
        ("epochs=x", "epochs=x should be a whole number"),
        ("epochs=0", "epochs=0 is too small"),
    ],
)
def test_a_change_of_the_model_is_refused(word, says):
    plan = resolve(spec_of("amp=o2"), LAPTOP)
    with pytest.raises(UsageError) as error:
        changes(plan, dict([word.split("=")]))
    assert says in str(error.value)


def test_steps_take_the_place_of_epochs_and_back():
    plan = resolve(spec_of("epochs=3"), LAPTOP)
    by_steps = changes(plan, {"steps": "50"})
    assert (by_steps.settings["epochs"], by_steps.settings["steps"]) == (None, 50)
    assert "steps=50" in by_steps.words
    assert "epochs=3" not in by_steps.words
    by_epochs = changes(by_steps, {"epochs": "9"})
    assert (by_epochs.settings["epochs"], by_epochs.settings["steps"]) == (9, None)
    assert "steps=50" not in by_epochs.words


def test_torch_goes_on_with_other_numbers_of_nodes_and_gpus():
    on_cpus = dataclasses.replace(resolve(spec_of("batch=8"), LAPTOP), queue="slurm", nodes=2)
    settings = {**on_cpus.settings, "device": "auto"}
    plan = dataclasses.replace(on_cpus, settings=settings, gpus=4, processes=4)
    fewer = changes(plan, {"nodes": "1", "gpus": "2"})
    assert (fewer.nodes, fewer.gpus, fewer.processes) == (1, 2, 2)
    assert changes(plan, {"gpus": "0"}).processes == 1
    own = dataclasses.replace(plan, recipe="lying_in_the_code_of_the_run")
    assert changes(own, {"nodes": "1"}).nodes == 1
    here = dataclasses.replace(plan, queue="direct", nodes=1, gpu_pool=("a", "b"), env={"CUDA_VISIBLE_DEVICES": "0,1"})
    values = as_recorded(to_json(here), changes(here, {"gpus": "1"}))
    assert (values["gpus"], values["processes"], values["env"]) == (1, 1, {})
    assert changes(here, {"gpus": "2"}).env["CUDA_VISIBLE_DEVICES"] == "a,b"
    without = dataclasses.replace(here, gpu_pool=(), gpus=0)
    assert changes(without, {"gpus": "0"}).gpus == 0
    on_gpus = dataclasses.replace(plan, settings={**settings, "device": "cuda"})
    assert changes(on_gpus, {"gpus": "2"}).gpus == 2 and not changes(plan, {"cluster.time": "null"}).cluster["time"]
    for before, key, text, says in (
        (on_gpus, "gpus", "0", "trains on GPUs, and continues on GPUs"),
        (here, "gpus", "0", "began with 2 to choose from"),
        (here, "nodes", "2", "nodes=2 needs cluster=slurm"),
        (here, "gpus", "3", "began with 2 to choose from"),
        (without, "gpus", "2", "gpus=2: .* ran without GPUs"),
        (plan, "gpus", "3", "batch=8 does not divide by 6 devices"),
        (on_cpus, "gpus", "2", "trains on CPUs, and would reserve GPUs that it does not use; say nodes=N"),
        (plan, "gpus", "-1", "too small"),
        (plan, "nodes", "0", "too small"),
        (dataclasses.replace(plan, framework="tensorflow"), "nodes", "1", "nodes can't change"),
    ):
        with pytest.raises(UsageError, match=says):
            changes(before, {key: text})


def test_torch_goes_on_sharded_and_back():
    plan = resolve(spec_of("amp=o2"), LAPTOP)
    sharded = changes(plan, {"parallel": "fsdp"})
    values = as_recorded(to_json(plan), sharded)
    assert (values["settings"]["parallel"], values["mechanism"]) == ("fsdp", "sharded_fp32_masters")
    assert "parallel=fsdp" in values["words"]
    assert changes(sharded, {"parallel": "ddp"}).mechanism == plan.mechanism
    for other, says in (
        (resolve(spec_of("recipe=gan", "data=synthetic"), LAPTOP), "parallel=fsdp: recipe=gan can't be sharded"),
        (dataclasses.replace(plan, framework="tensorflow"), "parallel can't change"),
    ):
        with pytest.raises(UsageError, match=says):
            changes(other, {"parallel": "fsdp"})


def test_a_time_limit_in_which_it_would_stop_at_once_is_refused(failed, capsys):
    assert main(["resume", failed.name, "cluster.time=1", "cluster.stop_before=60"]) == 2
    assert "cluster.time=1 is 60 s, and the run would be asked to save and stop" in capsys.readouterr().err
    assert record(failed, "status.json")["attempt"] == 1


def test_a_torch_that_can_not_shard_is_refused_before_anything_is_queued(failed, program, capsys):
    trainer = program.rename(program.with_name("trainer"))
    answer = "[ \"$1\" = -c ] && printf '3.12.3\\ntorch 2.8.0+cu128\\n' && exit"
    program.write_text(f'#!/bin/sh\n{answer}\nexec {shlex.quote(str(trainer))} "$@"\n')
    program.chmod(0o700)
    capsys.readouterr()
    assert main(["resume", failed.name, "parallel=fsdp"]) == 2
    says = "parallel=fsdp needs torch 2.9 or newer, and this is 2.8.0+cu128; say parallel=ddp (command line)"
    assert says in capsys.readouterr().err
    assert record(failed, "status.json")["attempt"] == 1
    assert main(["resume", failed.name, "parallel=ddp"]) == 0


def test_a_run_whose_code_or_python_is_gone_or_whose_gpus_are_taken_is_refused(failed, capsys):
    plan = record(failed, "plan.json")
    no_gpu = "1, free: 0; the others are not there any more (wait_gpus=true waits for them)"
    for changed, code, says in (
        ({"python": "/no/such/python"}, 2, "ran with is gone (/no/such/python); start it anew"),
        ({"gpu_pool": ["GPU-a"], "gpus": 1}, 3, no_gpu),
        ({"code": "f" * 64}, 2, f"began with is gone ({failed.parent}/.code/{'f' * 64}); start it anew"),
    ):
        for file in ("plan.json", "attempts/1/plan.json"):
            (failed / file).write_text(json.dumps({**plan, **changed}))
        assert main(["resume", failed.name]) == code
        assert says in capsys.readouterr().err
    assert record(failed, "status.json")["attempt"] == 1


@pytest.mark.parametrize("what", ["root", "run", "name"])
def test_a_folder_that_was_moved_goes_on_where_it_is(failed, tmp_path, capsys, what):
    before, there = failed.parent, tmp_path / "there" / "runs"
    there.parent.mkdir()
    if what == "root":
        before.rename(there)
    else:
        there.mkdir()
        failed.rename(there / (failed.name if what == "run" else OTHER))
    (run,) = selection.run_names(str(there))
    assert main(["resume", run, f"run_root={there}"]) == 0
    dump, now = json.loads((tmp_path / "dump").read_text()), there / run
    assert (dump["argv"][-1], dump["env"]["LAUNCHER_RUN_ID"]) == (f"run={now}", run)
    assert dump["env"]["PYTHONPATH"].startswith(f"{there}/.code/")
    assert (now / "attempts/2/stdout.log").exists() and not failed.exists()
    assert record(now, "attempts/2/plan.json")["run_root"] == str(there)
    capsys.readouterr()
    assert main(["ls"]) == 0 and f"{run}  done" in capsys.readouterr().out
    assert main(["logs", run]) == main(["report", run]) == main(["rm", run]) == 0
    assert not now.exists()


def test_a_copy_goes_on_as_a_run_of_its_own_under_a_name_of_its_own(failed, tmp_path, capsys):
    copy = tmp_path / "copies" / failed.name
    shutil.copytree(failed, copy)
    before = {path: path.read_bytes() for path in failed.rglob("*") if path.is_file()}
    assert main(["resume", str(copy)]) == 2
    refused = capsys.readouterr().err
    assert f"{copy} is a copy of {failed}: start that one, or give" in refused
    own = Path(refused.split()[-1])
    assert f"mv {copy} {own}" in refused and own.parent == copy.parent
    copy.rename(own)
    assert main(["resume", str(own)]) == 0
    assert json.loads((tmp_path / "dump").read_text())["env"]["LAUNCHER_RUN_ID"] == own.name
    assert states_of([Run(str(own.parent), own.name)])[0].state.name == "done" and (own / "attempts/2").is_dir()
    assert before == {path: path.read_bytes() for path in failed.rglob("*") if path.is_file()}
    assert record(own, "submission.json")["id"] != record(failed, "submission.json")["id"]


def test_a_copy_of_a_run_that_goes_on_has_none_of_its_processes(tmp_path, program, capsys):
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": "time.sleep(300)"})
    submission.start([folder], [plan])
    of = Run(str(folder.parent), folder.name)
    until(lambda: states_of([of])[0].state.name == "running")
    copy = tmp_path / "copies" / folder.name
    shutil.copytree(folder, copy)
    (seen,) = states_of([Run(str(copy.parent), copy.name)])
    assert seen.state.name == "lost" and f"a copy of {folder}, made before that ended" in seen.state.reason
    assert main(["cancel", "--now", str(copy)]) == main(["rm", "--now", "--force", str(copy)]) == 0
    assert not copy.exists() and states_of([of])[0].state.name == "running"
    assert main(["cancel", "--now", str(folder)]) == 0


@pytest.mark.parametrize(
    ("error", "is_submitted"),
    [
        (UsageError("Slurm refused the job"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=["refused", "full-disk", "interrupt"],
)
def test_a_resume_that_starts_nothing_leaves_the_run_and_its_plan_as_they_were(
    failed, error, is_submitted, monkeypatch
):
    assert main(["resume", failed.name]) == 0
    own = processes.from_json(record(failed, "status.json")["process"])
    assert own is not None
    until(lambda: not processes.is_alive(own))  # it copies its status for later once it has written it
    run = Run(str(failed.parent), failed.name)

    def refuse(folders, plans):
        if is_submitted:
            local_start.record_submission(failed, queue="slurm", first_attempt=3, answer=str(failed / "sbatch.out"))
            (failed / "sbatch.failed").touch()
        raise error

    before = {path: path.read_bytes() for path in failed.rglob("*") if path.is_file()}
    monkeypatch.setattr(submission, "start", refuse)
    with pytest.raises(type(error)):
        resume_here([run], {"steps": "12"}, {}, is_sweep=False)
    (failed / "sbatch.failed").unlink(missing_ok=True)
    assert before == {path: path.read_bytes() for path in failed.rglob("*") if path.is_file()}
    assert states_of([run])[0].state.name == "done" and not list(failed.parent.glob(".unfinished/*"))


def test_a_resume_that_was_killed_before_it_submitted_changes_no_later_one(failed):
    assert main(["resume", failed.name]) == 0
    run, steps = Run(str(failed.parent), failed.name), record(failed, "plan.json")["settings"]["steps"]
    killed = os.fork()
    if killed == 0:
        submission.start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        resume_here([run], {"steps": "12"}, {}, is_sweep=False)
        os._exit(1)
    assert os.waitpid(killed, 0)[1] == signal.SIGKILL and (failed / "attempts/plan.json").exists()
    assert states_of([run])[0].state.name == "done"
    assert json.loads(Path(plan_path(failed)).read_text())["settings"]["steps"] == steps != 12


def test_two_launchers_do_not_resume_a_run_at_once(failed, capsys):
    with run_roots.alone_with(failed, LOCK, "resumed"):
        assert main(["resume", failed.name]) == 2
    assert "is being resumed by another launcher" in capsys.readouterr().err
    assert main(["resume", failed.name]) == 0


def test_of_a_sweep_the_failed_runs_alone_start_again(root, monkeypatch):
    states = ("done", "failed", "cancelled")
    runs = [finished(root, f"{SWEEP}-00{index}", state) for index, state in enumerate(states)]
    started: list[str] = []

    def resumed(wanted, *_, **__):
        started.extend(run.id for run in wanted)
        return [run.folder for run in wanted], "slurm"

    monkeypatch.setattr(resume, "resume_here", resumed)
    monkeypatch.setattr(resume, "leave", lambda folders: 0)
    assert resume.main([SWEEP, "failed", f"run_root={root}"]) == 0
    assert started == [runs[1].name]
    with pytest.raises(UsageError, match=f"no run of {runs[0].name} has failed"):
        resume.main([runs[0].name, "failed", f"run_root={root}"])
