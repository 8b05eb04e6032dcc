"""GPUs of a shared host: which a run takes, what it waits for, and when it is refused."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands.plan import summary
from launcher.errors import Unavailable
from launcher.executors import stopping
from launcher.executors.local import start as local_start
from launcher.runs import run_roots, selection
from launcher.runs.store import Run
from tests.launcher.fake_gpus import FakeGpus
from tests.launcher.plan.conftest import SHOW, Bench, nobody_is_on_any, seen
from tests.launcher.run_folders import state, until


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


def test_a_gpu_with_errors_in_memory_is_taken_last_and_the_plan_says_so(bench: Bench, cards: FakeGpus) -> None:
    cards.report(0, "<volatile>", "<dram_uncorrectable>32</dram_uncorrectable>", "</volatile>")
    plan = bench.plan("gpus=2")
    assert any("GPU 0: 32 uncorrectable memory errors" in sentence for sentence in plan.advice)
    (folder,) = bench.start(plan)
    assert seen(folder) == "1,2"
    assert seen(bench.run("gpus=1")) == "0"


def test_a_stranger_who_came_after_the_plan_is_seen_at_the_start(bench: Bench, cards: FakeGpus) -> None:
    plan = bench.plan("gpus=3")
    cards.put(2, 1, "init")
    with pytest.raises(
        local_start.StartRefused, match=r"GPUs asked for: 3, free: 2; GPU 2: process 1 \(init\) of root"
    ):
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
    with pytest.raises(local_start.StartRefused, match="asked for: 2, free: 1"):
        bench.start(*plans)
    assert bench.folders() == [other]


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


def test_the_plan_says_that_gpus_are_chosen_at_the_start(bench: Bench) -> None:
    assert "2 GPUs (free ones of 3, chosen when it starts)" in summary(bench.plan("gpus=2"))
    assert "1 GPU, box" in summary(bench.plan("visible_gpus=[0]"))


def test_jobs_of_a_chain_that_need_nothing_of_each_other_share_the_gpus_and_wait_for_them(
    cards: FakeGpus, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sh").write_text(
        f'#!/bin/sh\necho "$1 $CUDA_VISIBLE_DEVICES" >>{tmp_path}/seen\n'
        f"until [ -e {tmp_path}/go-$1 ]; do sleep 0.1; done\n"
    )
    (tmp_path / "job.sh").chmod(0o755)
    line = f"{{words: 'cmd gpus=2 telemetry.every=0 -- {tmp_path}/job.sh"
    (tmp_path / "chain.yaml").write_text(f"a: {line} a'}}\nb: {line} b'}}\nc: {line} c', needs: a}}\n")
    assert main(["chain", str(tmp_path / "chain.yaml"), f"run_root={root}", "detach=true"]) == 0
    a, b, c = (root / name for name in capsys.readouterr().out.split())
    until(lambda: state(a).name == "running" and "GPU" in state(b).reason and a.name in state(c).reason)
    (tmp_path / "go-a").touch()
    (tmp_path / "go-b").touch()
    (tmp_path / "go-c").touch()
    until(lambda: state(a).name == state(b).name == state(c).name == "done")
    seen_by = dict(row.split() for row in (tmp_path / "seen").read_text().splitlines())
    assert all(len(gpus.split(",")) == 2 for gpus in seen_by.values()) and set(seen_by) == {"a", "b", "c"}
    # A chain whose first job finds its GPUs taken is refused, and leaves nothing.
    (tmp_path / "go-a").unlink()
    cards.put(0, os.getpid(), "python")
    cards.put(1, os.getpid(), "python")
    before = selection.run_names(str(root))
    assert main(["chain", str(tmp_path / "chain.yaml"), f"run_root={root}", "detach=true"]) == 3
    assert selection.run_names(str(root)) == before
