"""Locks on GPUs of a shared host: never two runs on one, none left behind, and none taken through a link."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launcher.executors import execute, stopping
from launcher.executors.local import start as local_start
from launcher.probe import gpu_locks
from launcher.runs import selection, store
from launcher.runs.store import Run
from tests.launcher.fake_gpus import FakeGpus
from tests.launcher.plan.conftest import SHOW, STAY, Bench, bash, kill, nobody_is_on_any, seen
from tests.launcher.run_folders import state, until
from tests.testbed.facts import Testbed


def launch(folders: list[Path]) -> list[subprocess.Popen[bytes]]:
    """The scripts of laid runs, all at once."""
    argvs = (["bash", str(folder / "run.sh")] for folder in folders)
    return [subprocess.Popen(argv, start_new_session=True, env=execute.environment()) for argv in argvs]


def test_a_driver_that_hangs_is_not_waited_for_for_ever(cards: FakeGpus) -> None:
    (cards.folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    look = gpu_locks.functions().replace("timeout 20 ", "timeout 0.2 ")
    assert subprocess.run(["bash", "-c", f"{look}\ngpu_look"]).returncode != 0


def test_gpus_are_seen_where_bash_can_write_no_temporary_file(cards: FakeGpus) -> None:
    text = f"{gpu_locks.functions()}\nulimit -f 0; gpu_look"
    done = subprocess.run(
        ["bash", "-c", text], env={**os.environ, "BASH_COMPAT": "5.0"}, capture_output=True, text=True
    )
    assert (done.stdout.count("\n"), done.stderr) == (len(cards.uuids), "")


def test_a_race_for_the_same_gpu_is_lost_by_one_and_leaves_nothing_of_it(bench: Bench) -> None:
    free = bench.facts()
    first, late = bench.plan("visible_gpus=[0]"), bench.plan("visible_gpus=[0]", facts=free)
    (winner,) = bench.start(first)
    with pytest.raises(local_start.StartRefused, match=rf"free: 0; GPU 0: held by .* \(run {winner.name}\)") as refused:
        bench.start(late)
    assert refused.value.exit_code == 3
    assert bench.folders() == [winner]
    assert selection.unfinished([str(bench.root)]) == [Run(str(bench.root), winner.name)]


def test_many_at_once_never_share_a_gpu_and_none_that_could_have_one_is_refused(bench: Bench) -> None:
    plans = [bench.plan("gpus=1") for _ in range(6)]
    folders = [execute.prepare(plan) for plan in plans]
    started = dict(zip(launch(folders), folders, strict=True))
    until(lambda: sum(process.poll() is not None for process in started) == 3)
    running = [process for process in started if process.returncode is None]
    assert {process.returncode for process in started if process not in running} == {gpu_locks.REFUSED}
    assert sorted(seen(started[process]) for process in running) == ["0", "1", "2"]
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_runs_killed_at_random_moments_never_share_a_gpu_and_block_none(bench: Bench, tmp_path: Path) -> None:
    """Each trainer locks a witness of its own for its GPU, which is held already if two are on it."""
    witness = (
        f"import fcntl; mine = open({str(tmp_path / 'on-')!r} + os.environ['CUDA_VISIBLE_DEVICES'], 'w')\n"
        "try: fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        f"except BlockingIOError: open({str(tmp_path / 'shared')!r}, 'a').write(sys.argv[-1])\n"
        f"{SHOW}; time.sleep(0.3)"
    )
    moments = random.Random(20260121)
    plans = [bench.plan("gpus=1", "wait_gpus=true", does=witness) for _ in range(10)]
    folders = [execute.prepare(plan) for plan in plans]
    started = launch(folders)
    for process, folder in zip(started[::2], folders[::2], strict=True):
        time.sleep(moments.uniform(0, 0.4))
        kill(process.pid, folder.name)
    assert [process.wait() for process in started[1::2]] == [0] * 5
    assert not (tmp_path / "shared").exists()
    for process in started[::2]:
        process.wait()
    until(nobody_is_on_any)


LEAVE = f"{SHOW}; import subprocess; subprocess.Popen(['setsid', 'sleep', '90'], close_fds=False)"


@pytest.mark.parametrize("ending", ["done", "killed", "cancelled"])
def test_a_run_that_ended_in_whatever_way_holds_nothing(bench: Bench, ending: str) -> None:
    folder = bench.run("gpus=3", does=LEAVE if ending == "done" else STAY)
    seen(folder)
    if ending == "killed":
        kill(store.read_or_empty(folder / "status.json")["process"]["pid"], folder.name)
    elif ending == "cancelled":
        assert stopping.kill_all([folder]) == {}
    until(nobody_is_on_any)


def test_a_trainer_that_outlives_its_killed_shell_keeps_its_gpu(bench: Bench) -> None:
    folder = bench.run("visible_gpus=[1]")
    seen(folder)
    os.kill(store.read_or_empty(folder / "status.json")["process"]["pid"], signal.SIGKILL)
    until(lambda: state(folder).name == "lost")
    assert [bool(entry.holder) for entry in gpu_locks.states()] == [False, True, False]
    assert stopping.kill_all([folder]) == {}
    until(nobody_is_on_any)


def test_another_users_lock_is_reported_and_can_be_had_once_it_is_released(
    open_cards: FakeGpus, testbed: Testbed
) -> None:
    (uuid,) = open_cards.uuids
    text = f"set -u\n{gpu_locks.functions()}\ngpu_take 1 {uuid} their-run && echo taken && read -r _"
    argv = testbed.as_user(["bash", "-c", text], {"PATH": os.environ["PATH"]})
    theirs = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert theirs.stdout is not None
    assert theirs.stdin is not None
    assert theirs.stdout.readline() == "taken\n"
    assert f"held by {testbed.user.name} (run their-run) since" in gpu_locks.states()[0].holder
    theirs.communicate("\n")
    mine = subprocess.run(["bash", "-c", text.replace("their-run", "mine")], input="\n", capture_output=True, text=True)
    assert (mine.stdout, mine.stderr) == ("taken\n", "")
    (lock,) = open_cards.locks()
    assert lock.stat().st_uid == testbed.user.uid
    assert " mine " in lock.read_text()


def test_a_lock_file_that_is_or_becomes_a_link_is_not_written_through(cards: FakeGpus, tmp_path: Path) -> None:
    """Whose the file is may replace it at any moment: here just before the note is written."""
    precious, (first, second, _) = tmp_path / "precious", cards.uuids
    precious.write_text("precious")
    Path(f"{bash('gpu_folder').stdout[:-1]}-{first}").symlink_to(precious)
    assert bash(f"gpu_take 1 {first} run").returncode == 1
    swap = f'rm "$folder-{second}"; ln -s {precious} "$folder-{second}"; command dd "$@"'
    ended = bash(f"dd() {{ {swap}; }}\ngpu_take 1 {second} run && echo took $LAUNCHER_GPUS")
    assert ended.stdout == "took 1\n", ended.stderr
    assert precious.read_text() == "precious"


def test_who_is_on_a_gpu_is_a_fact_that_a_plan_can_be_made_from_elsewhere() -> None:
    held = "held by mei (run x) since 2026-01-02T03:04:05Z"
    lines = ["0|GPU-a||", f"1|GPU-b|{held}|odd", ""]
    found = [(gpu.index, gpu.uuid, gpu.holder, gpu.fault) for gpu in gpu_locks.parse(lines)]
    assert found == [(0, "GPU-a", "", ""), (1, "GPU-b", held, "odd")]
