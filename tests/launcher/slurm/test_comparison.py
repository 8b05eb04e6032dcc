"""Comparisons as one job of the real Slurm. The trainer is a stand-in, so that these are about the allocation."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from launcher.compare import comparison
from launcher.plan.model import Compare, Plan
from launcher.probe.slurm_commands import call
from launcher.runs import store
from tests.launcher.compare.test_comparison_script import TRAINER
from tests.launcher.slurm.bench import Bench, ended, job_of, until

# Before it ends its block it writes down where it ran; one arm waits in its first attempt until it is asked to stop.
SEEN = """
(folder / f"seen-{attempt}.json").write_text(json.dumps({key: os.environ.get(key) for key in
    ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "LAUNCHER_RUN_ID")}))
if folder.name == "01" and attempt == "1" and (folder.parent.parent / "wait").exists():
    import time
    while not (folder / "STOP").exists(): time.sleep(0.05)
    (folder / "attempts" / attempt / "stopped.json").write_text("{}")
    sys.exit(85)
"""


def compared(bench: Bench, *words: str) -> Plan:
    how = Compare(rounds=2, steps=5, cool_down=0)
    plans = []
    for level in ("o0", "o1"):
        plan = bench.plan(TRAINER.replace("AT_FIRST", SEEN), f"amp={level}", "batch=8", *words)
        checkpoint = {**plan.settings["checkpoint"], "stop_every": how.steps}
        settings = {**plan.settings, "steps": how.total, "checkpoint": checkpoint}
        plans.append(dataclasses.replace(plan, settings=settings, swept=(("amp", level),)))
    return dataclasses.replace(comparison.make(plans, how), python=sys.executable)


def seen(folder: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("arms/*/seen-*.json"))]


def test_all_arms_run_in_one_job_on_the_same_gpus(bench: Bench) -> None:
    (folder,) = bench.submit(compared(bench, "gpus=1"))
    assert ended(folder, 90).name == "done"
    blocks = seen(folder)
    assert len(blocks) == 4
    assert {block["SLURM_JOB_ID"] for block in blocks} == {job_of(folder)}
    assert len({block["CUDA_VISIBLE_DEVICES"] for block in blocks}) == 1 and blocks[0]["CUDA_VISIBLE_DEVICES"]
    assert (folder / "blocks").read_text().split("\n")[:4] == ["00 85", "01 85", "01 0", "00 0"]
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["comparison"]["control"]) == ("done", "amp=o0"), "its job wrote it; nobody looked"


def test_before_its_time_limit_it_saves_and_says_how_to_go_on(bench: Bench) -> None:
    plan = compared(bench, "cluster.max_requeues=0")
    (folder,) = bench.submit(plan)
    (folder / "wait").touch()
    until(lambda: (folder / "arms/01/seen-1.json").exists())
    call(["scancel", "--batch", "--signal=USR1", job_of(folder)])
    state = ended(folder)
    assert state.name == "stopped"
    assert state.reason == "0 of 0 requeues used (cluster.max_requeues); time limit"
    assert (folder / "blocks").read_text() == "00 85\n"
    assert store.read_json(folder / "arms/01/status.json")["state"] == "stopped"  # type: ignore[index]
    assert json.loads((folder / "result.json").read_text())["status"] == "stopped"
