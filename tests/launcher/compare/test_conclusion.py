"""What stands in a comparison's own result.json, and when it is written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from launcher.compare import conclusion
from launcher.executors import backends
from launcher.runs import store
from launcher.runs.states import State
from launcher.runs.store import Run
from recipes.result import Result

from .test_compared import NOISE, arm, whole

DONE = State("done", attempt=1)
TWICE = [2 * each for each in (1.01, 1.00, 1.00, 1.02, 0.97)]


def ended(root: Path, *arms: dict, state: State = DONE, **more) -> dict:
    """The document of a comparison of these arms."""
    store.write_json(root / "plan.json", whole(root, *arms, **more))
    found = conclusion.document(root, state)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def observed(root: Path, number: str, **seen: str) -> None:
    """Change what was observed of an arm."""
    path = root / "arms" / number / "result.json"
    store.write_json(path, {**store.read_json(path), "observed": seen})


def test_it_has_every_key_of_a_runs_result_and_the_arms_beside_each_other(tmp_path):
    found = ended(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", TWICE))
    assert set(found) == {"schema", "comparison", *(field.name for field in dataclasses.fields(Result))}
    assert (found["status"], found["attempts"], found["framework"], found["mechanism"]) == ("done", 1, "torch", "")
    beside = found["comparison"]
    assert (beside["control"], beside["rounds"], beside["tolerance"]) == ("amp=o0", 5, 0.02)
    assert beside["verdict"].startswith("amp=o2 gains the most: 2.00 times the throughput of amp=o0")
    assert beside["sentences"][0].startswith("amp=o2 (half_model_fp32_masters in torch)")
    control, other = beside["arms"]
    assert control["ratio"] is control["loss_gap"] is None
    assert (other["arm"], other["label"], other["state"], other["result"]) == (
        "01",
        "amp=o2",
        "done",
        "arms/01/result.json",
    )
    assert other["ratio"]["mean"] == pytest.approx(2.0, rel=0.01)
    assert other["ratio"]["low"] < 2.0 < other["ratio"]["high"]
    assert (other["ratio"]["confidence"], other["ratio"]["rounds"]) == (0.95, 5)
    assert other["loss_gap"]["last"] == pytest.approx(0)
    assert len(other["by_round"]) == 5


def test_a_round_that_was_not_measured_is_null(tmp_path):
    stopped = State("stopped", "on request", attempt=2)
    found = ended(
        tmp_path, arm(tmp_path, 0, "o0", NOISE[:3]), arm(tmp_path, 1, "o2", TWICE[:2], finished=False), state=stopped
    )
    assert (found["status"], found["reason"], found["attempts"]) == ("stopped", "on request", 2)
    assert [each is None for each in found["comparison"]["arms"][1]["by_round"]] == [False, False, True, True, True]


def test_it_is_proved_only_if_every_arm_is(tmp_path):
    both = (arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", TWICE))
    assert ended(tmp_path, *both)["observed"]["verdict"] == "proved"
    observed(tmp_path, "01", verdict="unknown", why="it was not seen")
    seen = ended(tmp_path, *both)["observed"]
    assert (seen["verdict"], seen["why"]) == ("unknown", "amp=o2: it was not seen")
    observed(tmp_path, "01", verdict="emulated", why="in float32")
    assert ended(tmp_path, *both)["observed"] == {"verdict": "emulated", "why": "amp=o2: in float32"}
    observed(tmp_path, "00", verdict="contradicted", why="float16 was")
    seen = ended(tmp_path, *both)["observed"]
    assert (seen["verdict"], seen["why"]) == ("contradicted", "amp=o0: float16 was")


def test_an_arm_that_ran_out_of_memory_leaves_it_done_and_its_proof_unknown(tmp_path):
    control, broken = arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", [], finished=False)
    (tmp_path / "arms/01/failed").write_text("out of memory\n")
    found = ended(tmp_path, control, broken)
    assert (found["status"], found["reason"]) == ("done", None)
    assert found["observed"]["why"] == "amp=o2: nothing was observed"
    row = found["comparison"]["arms"][1]
    assert (row["state"], row["reason"], row["result"]) == ("failed", "it ran out of memory", None)


def test_which_arm_failed_is_the_reason(tmp_path):
    control, broken = arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", [], finished=False)
    (tmp_path / "arms/01/failed").write_text("exit code 9\n")
    found = ended(tmp_path, control, broken, state=State("failed", "the trainer ended", attempt=1, exit_code=1))
    assert (found["status"], found["reason"]) == ("failed", "amp=o2: its trainer ended with exit code 9")


def test_a_listing_writes_nothing_into_a_comparison_whose_job_was_killed(tmp_path):
    folder = tmp_path / "20260102-030405-brave-otter"
    folder.mkdir()
    store.write_json(folder / "plan.json", whole(folder, arm(folder, 0, "o0", NOISE), arm(folder, 1, "o2", TWICE)))
    store.write_json(folder / "status.json", {"schema": 1, "state": "stopped", "attempt": 1})
    before = sorted(folder.rglob("*"))
    backends.settle(backends.look([Run(str(tmp_path), folder.name)]))
    assert sorted(folder.rglob("*")) == before
    found = conclusion.document(folder, State("stopped", attempt=1))
    assert found is not None
    assert found["status"] == "stopped"


@pytest.mark.parametrize("told", [7, [7], [{"arm": 3}], {}, [{"swept": []}]])
def test_a_plan_that_tells_of_no_arms_leaves_no_result(tmp_path, told):
    arm(tmp_path, 0, "o0", NOISE)
    store.write_json(tmp_path / "plan.json", {"schema": 1, "arms": told, "comparison": {"rounds": "x"}})
    conclusion.write(tmp_path, DONE)
    assert not (tmp_path / "result.json").exists()


def test_numbers_that_are_none_are_left_out(tmp_path):
    both = (arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", TWICE))
    path = tmp_path / "arms/01/result.json"
    damage = {"peak_memory_bytes": "much", "wall_seconds": None, "updates": 3, "loss_scale": {"skipped_steps": []}}
    store.write_json(path, {**store.read_json(path), **damage})
    found = ended(tmp_path, *both)
    assert found["peak_memory_bytes"] == store.read_json(tmp_path / "arms/00/result.json")["peak_memory_bytes"]


def test_a_plain_run_is_left_alone(tmp_path):
    store.write_json(tmp_path / "plan.json", {"schema": 1})
    conclusion.write(tmp_path, DONE)
    (tmp_path / "arms").mkdir()
    conclusion.write(tmp_path, DONE)
    assert not (tmp_path / "result.json").exists()
