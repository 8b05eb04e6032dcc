"""Folders as a comparison leaves them, and what is reported of them."""

from __future__ import annotations

import json

from launcher.compare import report
from launcher.compare.arm_ratios import compare
from launcher.compare.verdict import remarks, verdict
from launcher.report import read
from launcher.runs import store
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from tests.launcher.report import folders

from ..run_folders import lines, metrics, result

STEPS = 10
NOISE = [1.00, 1.02, 0.98, 1.01, 0.99]
TWICE = [2 * factor for factor in (1.01, 1.00, 1.00, 1.02, 0.97)]
SLOW = [0.5 * factor for factor in NOISE[::-1]]


def arm(root, number, level, factors, *, loss=2.3, failed=None, finished=True, planned=None, row=None, data="same"):
    """An arm's folder: a round for each factor, with so many times 1,000 samples a second. Returns its plan."""
    folder = root / f"arms/{number:02}"
    folder.mkdir(parents=True)
    plan = folders.plan(level, swept=[["amp", level]], arm=f"{number:02}", **(planned or {}))
    store.write_json(folder / "plan.json", plan)
    written = []
    for index, factor in enumerate(factors):
        for values in folders.rows(STEPS, rate=1000 * factor)[1 : STEPS + 1]:
            step = index * STEPS + values["step"]
            written.append({**values, "step": step, "loss": loss - step / 100, **(row or {})})
    metrics(folder, written)
    if failed:
        (folder / "failed").write_text(f"{failed}\n")
    elif finished:
        status = {"state": "done", "attempt": 1, "exit_code": 0, "started": "2026-01-02T03:04:05Z", "ended": None}
        store.write_json(folder / "status.json", status)
        scale = {"final": None, "skipped_steps": 0}
        outcome = result(attempts=1, mechanism=plan["mechanism"], digests={"data": data}, loss_scale=scale)
        store.write_json(folder / "result.json", outcome)
    return plan


def script(root, number, level, factors, *, counted="SGD", arguments=(), steps=STEPS, losses=None):
    """An arm's folder of a user's script: a block for each factor, with so many times 10 steps a second."""
    plan = arm(root, number, level, [], planned={"script": {"file": "script/train.py", "arguments": list(arguments)}})
    folder = root / f"arms/{number:02}"
    rows = []
    for index, factor in enumerate(factors):
        for step in range(1, steps + 1):
            loss = losses[index] if losses and step % 2 else None
            row = {"seconds": 0.1 / factor, "steps_per_second": 10 * factor, "samples_per_second": None, "loss": loss}
            rows.append({**row, "step": index * STEPS + step, "timed": step > 2, "skipped": False})
        rows.append({"event": "end", "block": index, "step": index * STEPS + steps})
    metrics(folder, rows)
    throughput = {"unit": "steps/s", "mean": 10.0, "p10": 9.0, "p90": 11.0, "counted": counted}
    change(
        root, number, effective={}, throughput=throughput, wall_seconds=8.0, loss={}, eval={}, loss_scale={}, digests={}
    )
    return plan


def plan_of(root, *arms, create=arm, **more):
    """The plan of a comparison, and its arms' folders: of each a level, the factors of its rounds and other values."""
    plans = [create(root, number, *own[:2], **dict(*own[2:])) for number, own in enumerate(arms)]
    how = {"rounds": 5, "steps": STEPS, "cool_down": 0, "tolerance": 0.02}
    plan = {**folders.plan("o0"), "comparison": how, "arms": plans, **more}
    store.write_json(root / "plan.json", plan)
    return plan


def change(root, number, file="result.json", **values):
    """Other values in a record of an arm."""
    path = root / f"arms/{number:02}/{file}"
    store.write_json(path, {**store.read_json(path), **values})


def document(root, plan, state="done"):
    store.write_json(root / "provenance.json", {"command": ["python"]})
    return report.document("a comparison", root, State(state, attempt=1), decode(PlanRecord, plan)[0])


def concluded(root, plan):
    """The conclusions of the comparison, as its result has them: in all, then what the figures don't say."""
    state, record = State("done", attempt=1), decode(PlanRecord, plan)[0]
    how = report.settings_of(record)
    evidence = read.of_arms(root, record, state, read=True, block=how.steps)
    arms = compare(evidence, how.steps)
    return [verdict(arms, how), *remarks(arms)]


def rewrite(path, make):
    """Lines of a file of JSON rows, as `make` makes them of the rows."""
    path.write_text("".join(json.dumps(make(row)) + "\n" for row in lines(path)))
