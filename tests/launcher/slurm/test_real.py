"""Runs on the real Slurm of the testbed. The trainer is a stand-in, so that these are about the queue."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from pathlib import Path

import pytest

from launcher.commands import ls
from launcher.errors import Unavailable, UsageError
from launcher.executors import backends, stopping
from launcher.executors.execute import execute
from launcher.executors.remove import remove
from launcher.executors.resume import resume_here
from launcher.executors.slurm.executor import SlurmExecutor
from launcher.probe import slurm_probing
from launcher.probe.slurm_commands import call
from launcher.probe.slurm_probing import probe as probe_slurm
from launcher.runs import run_files, selection, store
from launcher.runs.store import Run
from tests.launcher.slurm.bench import Bench, ended, job_of, state, until
from tests.testbed.facts import Testbed


def test_the_job_finds_its_own_environment_and_gpus_and_nothing_of_the_submitters(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "99")
    monkeypatch.setenv("RANK", "7")
    plan = bench.plan("", "gpus=2", "batch=128")
    (folder,) = bench.submit(dataclasses.replace(plan, env={**plan.env, "V": "1.10"}))
    shown = call(["scontrol", "show", "job", job_of(folder)]).stdout
    ended(folder)
    environment = bench.seen()["env"]
    assert (environment["V"], environment["HOME"]) == ("1.10", str(Path.home()))
    assert len(environment["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    assert not {"API_TOKEN", "RANK", "SLURM_ARRAY_TASK_ID", "SLURM_EXPORT_ENV"} & environment.keys()
    assert "hunter2" not in shown + (folder / "run.sh").read_text() + (folder / "plan.json").read_text()


@pytest.mark.parametrize("accounting", [True, False])
def test_states_are_true_with_and_without_accounting(
    bench: Bench, slurm: Testbed, accounting: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not accounting:
        monkeypatch.setenv("SLURM_CONF", slurm.slurm.conf_without_accounting)
    (good,) = bench.submit(bench.plan())
    (bad,) = bench.submit(bench.plan("sys.exit(3)"))
    (killed,) = bench.submit(bench.plan("os.kill(os.getpid(), 9)"))
    (large,) = bench.submit(bench.plan("x = bytearray(900 * 2**20); time.sleep(60)", "cluster.mem=200M"))
    (by_hand,) = bench.submit(bench.plan("time.sleep(300)"))
    (waiting,) = bench.submit(bench.plan("", "cluster.flags=['--hold']"))
    assert state(waiting).name == "queued"
    before = set(os.listdir(waiting))
    stopping.cancel([Run(str(waiting.parent), waiting.name)], now=True)
    assert ended(waiting).name == "cancelled"
    assert set(os.listdir(waiting)) - before == {"cancelled"}, "of which ten thousand are written at once"
    until(lambda: not backends.with_processes({str(waiting): run_files.load(str(waiting))}))
    until(lambda: started(by_hand))
    call(["scancel", job_of(by_hand)])
    assert ended(good).name == "done"
    assert ls.main([good.name, f"run_root={bench.root}"]) == 0
    assert re.search(rf"where +slurm job {job_of(good)} on n[12]\n", capsys.readouterr().out)
    assert (good / "attempts/1/stdout.log").read_text() == "to stdout\n"
    assert ended(bad)[:2] == ("failed", "the trainer ended with exit code 3")
    assert ended(killed)[:2] == ("failed", "the trainer was killed by signal 9")
    for folder, name, reason in (
        (large, "failed", "more memory than it had asked for"),
        (by_hand, "cancelled", "cancelled in Slurm"),
    ):
        assert ended(folder).name == name and reason in state(folder).reason


def started(folder: Path) -> bool:
    log = folder / "attempts/1/stdout.log"
    return log.exists() and bool(log.read_text())


def test_a_sweep_is_one_array_whose_records_a_group_may_read_and_anothers_element_does_not_run(bench: Bench) -> None:
    words = ("share=group", "cluster.parallel=2", "cluster.flags=['--hold']")
    folders = bench.submit(*(bench.plan("", f"seed={seed}", *words) for seed in range(3)))
    array, _, _ = job_of(folders[0]).partition("_")
    assert [job_of(folder) for folder in folders] == [f"{array}_{index}" for index in range(3)]
    os.chown(folders[2] / "run.sh", 61002, 61002)
    call(["scontrol", "release", array])
    assert [ended(folder).name for folder in folders] == ["done", "done", "failed"]
    assert store.attempts(folders[2]) == []
    assert [store.read_or_empty(folder / "plan.json")["settings"]["seed"] for folder in folders] == [0, 1, 2]
    assert stat.S_IMODE(bench.root.stat().st_mode) == 0o3770
    names = ("status.json", "submission.json", "attempts/1/stdout.log")
    records = [Path(store.read_or_empty(folders[0] / "submission.json")["log"])]  # which Slurm writes
    records += [folder / name for folder in folders[:2] for name in names]
    assert {stat.S_IMODE(path.stat().st_mode) for path in records} == {0o640}
    assert stat.S_IMODE((bench.root / f".code-{os.geteuid()}").stat().st_mode) & 0o777 == 0o700


def test_a_planned_sweep_does_not_ask_again_for_the_largest_array(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = probe_slurm().max_array_size
    monkeypatch.setattr(slurm_probing, "probe", None)
    assert slurm_probing.max_array_size() == largest


def test_each_shape_of_resources_is_an_array_of_its_own_in_parts_no_larger_than_the_cluster_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (bench.plan("", "cluster.parallel=2", *words) for words in (("gpus=1",), ("gpus=2", "batch=128")))
    bench.write_code(one)
    executor = SlurmExecutor()
    monkeypatch.setattr(slurm_probing, "max_array_size", lambda: 2)
    with executor.batch():
        jobs = [executor.submit(execute, plan) for plan in (one, two, one, one)]
    assert "the sweep is 3 job arrays; cluster.parallel=2 limits each" in capsys.readouterr().err
    arrays = [job.job_id.partition("_")[0] for job in jobs]
    assert arrays[0] == arrays[2] and len(set(arrays)) == 3
    assert all(ended(job.run_dir).name == "done" for job in jobs)
    assert len(list(bench.root.glob(".sweeps/*/*.sh"))) == 3


def test_a_job_that_slurm_refuses_or_that_comes_after_no_run_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, lonely = bench.plan("", "cluster.constraint=quantum"), dataclasses.replace(bench.plan(), after="nosuch")
    with pytest.raises(UsageError, match=r"Slurm would refuse this job: .* \(cluster\.constraint=quantum\)"):
        bench.submit(refused)
    monkeypatch.setattr("launcher.executors.submission.check_plans", lambda plans: None)
    for plans, message in (([refused], "Slurm refused the job"), ([lonely], "no run"), ([lonely, lonely], "no run")):
        with pytest.raises(UsageError, match=message):
            bench.submit(*plans)
    assert not selection.run_names(str(bench.root))


def test_a_resume_is_refused_a_time_limit_over_the_partitions(bench: Bench) -> None:
    (folder,) = bench.submit(bench.plan("sys.exit(1)"))
    assert ended(folder).name == "failed"
    changes = {"cluster.partition": "short", "cluster.time": "400-0"}
    with pytest.raises(UsageError, match=r"cluster\.time=400-0 is over the 5 minutes"):
        resume_here([Run(str(bench.root), folder.name)], changes, {}, is_sweep=False)
    assert state(folder).name == "failed"


@pytest.mark.alone
def test_a_job_for_nodes_that_are_drained_now_is_queued(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    call(["scontrol", "update", "nodename=n2", "state=drain", "reason=test"])
    try:
        (folder,) = bench.submit(bench.plan("", "cluster.nodelist=n2"))
        assert "not available; of the default partition, n2 drain" in capsys.readouterr().err
        call(["scontrol", "create", "partition=first", "nodes=n1"])
        for words, message in (
            (["cluster.nodelist=n2", "cluster.flags=[--tmp=9T]"], "Slurm refused the job: .*disk"),
            (["cluster.partition=first", "cluster.flags=[--tmp=9T]"], "Slurm would refuse"),  # n2 is not in it
        ):
            with pytest.raises(UsageError, match=message):
                bench.submit(bench.plan("", *words))
        with pytest.raises(UsageError, match="Slurm would refuse"):  # a job that can run would be queued without it
            bench.submit(bench.plan(), bench.plan("", "cluster.nodelist=n2"))
        assert state(folder).name == "queued"
        assert selection.run_names(str(bench.root)) == [folder.name]
    finally:
        call(["scontrol", "delete", "partition=first"])
        call(["scontrol", "update", "nodename=n2", "state=resume"])
    assert ended(folder).name == "done"


def test_after_waits_for_the_run_it_names_and_after_a_failed_one_only_any_starts(bench: Bench) -> None:
    go = bench.root.parent / "go"
    waits = f"[time.sleep(0.1) for _ in iter(lambda: os.path.exists({str(go)!r}), True)]"
    (first,) = bench.submit(bench.plan(waits))
    (second,) = bench.submit(dataclasses.replace(bench.plan(), after=first.name))
    (failed,) = bench.submit(bench.plan(f"{waits}; sys.exit(1)"))
    (never,) = bench.submit(dataclasses.replace(bench.plan(), after=failed.name))
    (anyway,) = bench.submit(dataclasses.replace(bench.plan(), after=f"any:{failed.name}"))
    until(lambda: state(second).reason == f"waiting for {first.name}, which it comes after")
    go.touch()
    assert ended(second).name == ended(anyway).name == "done"
    done = [store.read_or_empty(folder / "status.json") for folder in (first, second)]
    assert done[1]["started"] >= done[0]["ended"]
    assert ended(never)[:2] == ("cancelled", f"it never started: it was to come after {failed.name}, which failed")
    # Slurm soon forgets how it ended, and would start the other.
    with pytest.raises(UsageError, match=f"{failed.name} has ended as failed"):
        bench.submit(dataclasses.replace(bench.plan(), after=failed.name))


def test_a_job_that_was_put_back_into_the_queue_is_cancelled_at_once(bench: Bench) -> None:
    (folder,) = bench.submit(bench.plan("time.sleep(600)", "cluster.stop_before=30", "cluster.time=5"))
    until(lambda: started(folder))
    call(["scontrol", "requeuehold", job_of(folder)])
    until(lambda: state(folder).name == "queued")
    said: list[str] = []
    (row,) = stopping.cancel([Run(str(folder.parent), folder.name)], say=said.append)
    assert not said, "a run that is asked to stop, or killed after a grace, is announced"
    assert (row.seen.state.name, row.seen.state.reason) == ("cancelled", "before it started again")


def test_a_running_job_is_deleted_by_force(bench: Bench) -> None:
    folders = bench.submit(
        bench.plan("signal.signal(15, signal.SIG_IGN); time.sleep(600)"), bench.plan("time.sleep(600)")
    )
    until(lambda: all(map(started, folders)))
    remove([Run(str(folder.parent), folder.name) for folder in folders], force=True)
    assert not any(folder.exists() for folder in folders)


# Stops as a trainer does when it finds STOP, in its first attempt; does not end in any other.
STOPS = """
stop = sys.argv[-1][4:] + '/STOP'
n = os.environ['LAUNCHER_ATTEMPT']
if n == '1':
    while not os.path.exists(stop): time.sleep(0.1)
    open(sys.argv[-1][4:] + '/attempts/1/stopped.json', 'w').write('{"step": 7}')
    sys.exit(85)
time.sleep(3600)
"""


def test_a_run_is_requeued_alone_no_more_often_than_allowed_and_never_when_it_was_asked_to_stop(bench: Bench) -> None:
    folders = bench.submit(bench.plan(STOPS), bench.plan(STOPS))
    (limited,) = bench.submit(bench.plan(STOPS, "cluster.max_requeues=0"))
    (asked,) = bench.submit(bench.plan(STOPS))
    until(lambda: all(map(started, (*folders, limited, asked))))
    for folder in (folders[1], limited):
        call(["scancel", "--batch", "--signal=USR1", job_of(folder)])
    stopping.request_stop(asked)
    until((folders[1] / "attempts/2").exists, 180)
    assert state(folders[0])[:3] == ("running", "", 1)
    assert ended(limited).name == ended(asked).name == "stopped"
    assert "0 of 0 requeues used (cluster.max_requeues); time limit" in state(limited).reason
    assert state(asked).attempt == 1
    stopping.cancel([Run(str(folder.parent), folder.name) for folder in folders], now=True)
    assert [ended(folder).name for folder in folders] == ["cancelled", "cancelled"]


def test_without_slurm_on_this_host_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="there is no sbatch on"):
        probe_slurm()


def test_a_controller_that_does_not_answer_is_reported(
    slurm: Testbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = Path(slurm.slurm.conf).read_text()
    wrong = re.sub(r"SlurmctldPort=.*", "SlurmctldPort=1\nMessageTimeout=1", text)
    (tmp_path / "slurm.conf").write_text(wrong)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(Unavailable, match=r"Slurm's controller does not answer: .*Unable to contact"):
        probe_slurm()
