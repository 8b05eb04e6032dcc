"""GPUs of a shared host: real locks, real processes and kills; only `nvidia-smi` is a program of ours."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.code import code_store
from launcher.commands.plan import summary
from launcher.errors import Unavailable
from launcher.executors import execute, stopping, submission
from launcher.executors.local import start as local_start
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe import gpu_locks, gpu_probing
from launcher.probe.facts import Facts
from launcher.probe.gpu_locks import Seen
from launcher.runs import processes, run_roots, selection, store
from launcher.runs.store import Run
from tests.launcher import fake_gpus
from tests.launcher.fake_gpus import FakeGpus
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import state, until
from tests.testbed.facts import Testbed

SHOW = "open(sys.argv[-1][4:] + '/seen', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
STAY = f"{SHOW}; time.sleep(600)"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """Three GPUs, which nobody is on."""
    made = fake_gpus.make(tmp_path / "driver", 3)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    yield made
    made.close()


@pytest.fixture
def open_cards(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """The same, which another user can ask about too."""
    with tempfile.TemporaryDirectory(dir=testbed.shared) as folder:
        os.chmod(folder, 0o755)
        made = fake_gpus.make(Path(folder, "driver"), 1)
        monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
        yield made
        made.close()


@pytest.fixture
def bench(cards: FakeGpus, root: Path, program: Path) -> Bench:
    return Bench(root, program)


class Bench:
    """Runs on this machine whose trainer is a program of ours."""

    def __init__(self, root: Path, program: Path) -> None:
        self.root = root
        self.program = program

    def facts(self) -> Facts:
        gpus, problem = gpu_probing.listed()
        assert problem == ""
        return dataclasses.replace(
            LAPTOP, gpus=gpu_probing.with_holders(gpus), run_root=str(self.root), python=str(self.program)
        )

    def plan(self, *words: str, does: str = STAY, facts: Facts | None = None) -> Plan:
        plan = resolve(spec_of("batch=144", *words), facts or self.facts())
        code_store.store(self.root / ".code", plan.code, {})
        dump = str(self.root.parent / "dump")
        return dataclasses.replace(plan, env={**plan.env, "DUMP": dump, "BEHAVIOUR": does}, processes=1)

    def start(self, *plans: Plan) -> list[Path]:
        return submission.submit(plans, {"schema": 1})

    def run(self, *words: str, **more: Any) -> Path:
        """One run, started, which has its GPUs."""
        (folder,) = self.start(self.plan(*words, **more))
        return folder

    @property
    def until_go(self) -> str:
        """A trainer that runs until `go`."""
        return f"{SHOW}; [time.sleep(0.02) for _ in iter(lambda: os.path.exists({str(self.root / 'go')!r}), True)]"

    def go(self) -> None:
        (self.root / "go").touch()

    def folders(self) -> list[Path]:
        return [self.root / name for name in sorted(selection.run_names(str(self.root)))]


def launch(folders: list[Path]) -> list[subprocess.Popen[bytes]]:
    """The scripts of laid runs, all at once."""
    argvs = (["bash", str(folder / "run.sh")] for folder in folders)
    return [subprocess.Popen(argv, start_new_session=True, env=execute.environment()) for argv in argvs]


def bash(text: str) -> subprocess.CompletedProcess[str]:
    """Lines of bash after the functions that take GPUs."""
    argv = ["bash", "-c", f"set -u\n{gpu_locks.functions()}\n{text}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def seen(folder: Path) -> str:
    """The devices that the trainer of a run saw."""
    return str(until(lambda: (folder / "seen").exists() and (folder / "seen").read_text()))


def kill(shell: int, run: str) -> None:
    """All of a run at once, as nothing but the kernel would end it."""
    for process in processes.processes_of([processes.Target(processes.identity(shell), run)])[0]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def nobody_is_on_any() -> bool:
    return {entry.holder for entry in gpu_locks.look()} == {""}


def test_a_driver_that_hangs_is_not_waited_for_for_ever(cards: FakeGpus) -> None:
    (cards.folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    look = gpu_locks.functions().replace("timeout 20 ", "timeout 0.2 ")
    assert subprocess.run(["bash", "-c", f"{look}\ngpu_look"], timeout=55).returncode != 0


def test_gpus_are_taken_in_the_order_of_the_bus(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert seen(bench.run("gpus=2")) == "0,1"
    third = bench.run("gpus=1")
    assert seen(third) == "2"
    assert main(["ls", third.name]) == 0
    assert re.search("^where .* on GPU 2$", capsys.readouterr().out, re.MULTILINE)


def test_named_gpus_are_taken_in_the_order_named_and_without_a_number_all(bench: Bench) -> None:
    named = bench.run("visible_gpus=[2,0]")
    assert seen(named) == "2,0"
    assert seen(bench.run("gpus=1", does=SHOW)) == "1"
    assert stopping.kill_all([named]) == {}
    until(nobody_is_on_any)
    assert seen(bench.run()) == "0,1,2"


def test_what_is_taken_is_refused_before_anything_is_made_naming_who_has_it_and_since_when(bench: Bench) -> None:
    first = bench.run("gpus=2")
    with pytest.raises(Unavailable) as refused:
        bench.plan("visible_gpus=[1,2]")
    message = str(refused.value)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    assert f"asked for on box: 2, free: 1; GPU 1: held by {user} (run {first.name}) since 20" in message
    assert "gpus=1 takes what is free, wait_gpus=true waits for them" in message
    assert refused.value.exit_code == 3
    assert bench.folders() == [first]


def test_a_race_for_the_same_gpu_is_lost_by_one_and_leaves_nothing_of_it(bench: Bench) -> None:
    free = bench.facts()
    first, late = bench.plan("visible_gpus=[0]"), bench.plan("visible_gpus=[0]", facts=free)
    (winner,) = bench.start(first)
    with pytest.raises(local_start.Refused, match=rf"free: 0; GPU 0: held by .* \(run {winner.name}\)") as refused:
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
    assert [process.wait(timeout=300) for process in started[1::2]] == [0] * 5
    assert not (tmp_path / "shared").exists()
    for process in started[::2]:
        process.wait(timeout=60)
    until(nobody_is_on_any)


LEAVE = f"{SHOW}; import subprocess; subprocess.Popen(['setsid', 'sleep', '30'], close_fds=False)"


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
    assert [bool(entry.holder) for entry in gpu_locks.look()] == [False, True, False]
    assert stopping.kill_all([folder]) == {}
    until(nobody_is_on_any)


def test_a_gpu_with_a_strangers_process_is_not_free_and_the_process_is_named(bench: Bench, cards: FakeGpus) -> None:
    cards.put(0, os.getpid(), "/opt/their env/bin/python3.11")
    assert seen(bench.run("gpus=1")) == "1"
    with pytest.raises(Unavailable, match=rf"GPU 0: process {os.getpid()} \(python3\.11\) of \w+ since 20\d\d-"):
        bench.plan("visible_gpus=[0]")


def test_memory_in_use_without_a_process_counts_unless_a_display_hangs_there(bench: Bench, cards: FakeGpus) -> None:
    cards.use(0, 7000)
    cards.use(1, 900, display="Enabled")
    assert seen(bench.run("gpus=1")) == "1"
    with pytest.raises(Unavailable, match="GPU 0: 7000 MiB in use by processes that are not seen from here"):
        bench.plan("visible_gpus=[0]")
    (cards.folder / "old").touch()  # a driver that knows no displays is asked without them
    assert [bool(entry.holder) for entry in gpu_locks.look()] == [True, True, False]


def test_a_stranger_who_came_after_the_plan_is_seen_at_the_start(bench: Bench, cards: FakeGpus) -> None:
    plan = bench.plan("gpus=3")
    cards.put(2, 1, "init")
    with pytest.raises(local_start.Refused, match=r"GPUs asked for: 3, free: 2; GPU 2: process 1 \(init\) of root"):
        bench.start(plan)
    assert bench.folders() == []


def test_a_run_that_may_wait_is_queued_with_what_it_waits_for_and_starts_or_is_cancelled(bench: Bench) -> None:
    first = bench.run("gpus=3")
    second = bench.run("gpus=1", "wait_gpus=true", does=SHOW)
    waiting = state(second)
    assert waiting.name == "queued"
    assert "GPUs asked for: 1, free: 0; GPU 0: held by" in waiting.reason
    assert first.name in waiting.reason
    third = bench.run("gpus=1", "wait_gpus=true")
    ((ended, why),) = stopping.cancel([Run(str(bench.root), third.name)])
    assert (ended.state.name, why, (third / "seen").exists()) == ("cancelled", "", False)
    assert stopping.kill_all([first]) == {}
    assert seen(second) == "0"
    until(lambda: state(second).name == "done")


def test_a_run_that_comes_after_one_gets_the_gpus_that_it_was_on(bench: Bench) -> None:
    run_roots.remember(bench.root)
    first = bench.run("gpus=3", does=bench.until_go)
    second = bench.run("gpus=3", f"after={first.name}", does=SHOW)
    until(lambda: state(second).reason == f"waiting for {first.name}, which it comes after")
    bench.go()
    assert seen(second) == "0,1,2"
    until(lambda: state(second).name == "done")


def test_a_sweep_runs_a_cell_on_each_free_set_of_gpus(bench: Bench) -> None:
    other = bench.run("visible_gpus=[1]")
    folders = bench.start(*(bench.plan("gpus=1", does=bench.until_go) for _ in range(4)))
    assert [seen(folder) for folder in folders[:2]] == ["0", "2"]
    until(lambda: state(folders[2]).name == "queued" and "free: 0" in state(folders[2]).reason)
    assert state(folders[3]).name == "queued"
    assert stopping.kill_all([other]) == {}
    assert seen(folders[2]) == "1"
    bench.go()
    until(lambda: {state(folder).name for folder in folders} == {"done"})


def test_a_sweep_whose_first_cell_finds_no_gpu_is_refused_whole(bench: Bench) -> None:
    plans = [bench.plan("gpus=2") for _ in range(3)]
    other = bench.run("gpus=2")
    with pytest.raises(local_start.Refused, match="asked for: 2, free: 1"):
        bench.start(*plans)
    assert bench.folders() == [other]
    assert selection.sweep_names(str(bench.root)) == []


def test_resume_takes_the_gpus_again_and_is_refused_while_they_are_taken(bench: Bench) -> None:
    from launcher.commands.resume import main as resume

    folder = bench.run("visible_gpus=[0]", does="sys.exit(1)")
    until(lambda: state(folder).name == "failed")
    other = bench.run("visible_gpus=[0]")
    before = {name: (folder / name).read_bytes() for name in ("status.json", "submission.json", "plan.json")}
    with pytest.raises(Unavailable, match=rf"GPU 0: held by .* \(run {other.name}\)"):
        resume([folder.name, "detach=true"])
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert stopping.kill_all([other]) == {}
    assert resume([folder.name, "detach=true"]) == 0
    until(lambda: state(folder).name == "failed" and state(folder).attempt == 2)
    assert (folder / "attempts/2/gpus").read_text() == "0\n"


def test_another_users_lock_is_seen_and_can_be_taken_over_once_it_is_let_go(
    open_cards: FakeGpus, testbed: Testbed
) -> None:
    (uuid,) = open_cards.uuids
    text = f"set -u\n{gpu_locks.functions()}\ngpu_take 1 {uuid} their-run && echo taken && read -r _"
    argv = testbed.as_user(["bash", "-c", text], {"PATH": os.environ["PATH"]})
    theirs = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert theirs.stdout is not None
    assert theirs.stdin is not None
    assert theirs.stdout.readline() == "taken\n"
    assert f"held by {testbed.user.name} (run their-run) since" in gpu_locks.look()[0].holder
    theirs.communicate("\n", timeout=60)
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


def test_the_plan_says_that_gpus_are_chosen_at_the_start(bench: Bench) -> None:
    assert "2 GPUs (free ones of 3, chosen when it starts)" in summary(bench.plan("gpus=2"))
    assert "1 GPU, box" in summary(bench.plan("visible_gpus=[0]"))


def test_who_is_on_a_gpu_is_a_fact_that_a_plan_can_be_made_from_elsewhere() -> None:
    lines = ["0 GPU-a ", "1 GPU-b held by mei (run x) since 2026-01-02T03:04:05Z", ""]
    held = "held by mei (run x) since 2026-01-02T03:04:05Z"
    assert gpu_locks.parse(lines) == [Seen(index=0, uuid="GPU-a"), Seen(index=1, uuid="GPU-b", holder=held)]
