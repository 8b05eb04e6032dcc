"""A comparison's own result.json, and when it is written."""

from __future__ import annotations

import dataclasses
import json

import pytest

from amp_launcher.result import Result
from launcher.compare import write_result
from launcher.executors import backends
from launcher.runs import store
from launcher.runs.states import State
from launcher.runs.store import Run

from .folders import NOISE, TWICE, arm, change, plan_of

DONE = State("done", attempt=1)
BOTH = ("o0", NOISE), ("o2", TWICE)


def concluded(root, state=DONE):
    """The document of the comparison in this folder."""
    values = write_result.document(root, state)
    json.dumps(values, allow_nan=False)
    return values


def test_it_has_every_key_of_a_runs_result_and_the_arms_beside_each_other(tmp_path):
    plan_of(tmp_path, *BOTH)
    values = concluded(tmp_path)
    assert set(values) == {"schema", "comparison", *(field.name for field in dataclasses.fields(Result))}
    assert (values["status"], values["attempts"], values["framework"], values["mechanism"]) == ("done", 1, "torch", "")
    assert (values["recipe"], values["observed"]["verdict"]) == ("mnist", "proved")
    comparison = values["comparison"]
    assert (comparison["control"], comparison["rounds"], comparison["tolerance"]) == ("amp=o0", 5, 0.02)
    assert comparison["verdict"].startswith("amp=o2 gains the most: 2.00 times the throughput of amp=o0")
    assert comparison["sentences"] == []
    control, other = comparison["arms"]
    assert control["ratio"] is control["loss_gap"] is None
    facts = {"arm": "01", "label": "amp=o2", "state": "done", "result": "arms/01/result.json"}
    assert facts.items() <= other.items()
    assert other["ratio"]["mean"] == pytest.approx(2.0, rel=0.01)
    assert other["ratio"]["low"] < 2.0 < other["ratio"]["high"]
    assert (other["ratio"]["confidence"], other["ratio"]["rounds"]) == (0.95, 5)
    assert other["loss_gap"]["last"] == pytest.approx(0)
    assert len(other["by_round"]) == 5


def test_a_round_that_was_not_measured_is_null(tmp_path):
    plan_of(tmp_path, ("o0", NOISE[:3]), ("o2", TWICE[:2], {"finished": False}))
    values = concluded(tmp_path, State("stopped", "on request", attempt=2))
    assert (values["status"], values["reason"], values["attempts"]) == ("stopped", "on request", 2)
    assert [rate is None for rate in values["comparison"]["arms"][1]["by_round"]] == [False, False, True, True, True]


def test_steps_that_leave_the_gpu_idle_are_said_to_tell_little_of_the_precision(tmp_path):
    plan_of(tmp_path, *BOTH)
    for number, share in ((0, 0.75), (1, 0.25)):
        change(tmp_path, number, throughput={"unit": "samples/s", "gpu_busy_share": share}, effective={"compile": True})
    assert concluded(tmp_path)["comparison"]["sentences"][-1] == (
        "The GPU computed 25% of the time in amp=o2: these steps are launch-bound, and their speed says little of the "
        "precision. Compare with a larger batch."
    )


def test_it_is_proved_only_if_every_arm_is_and_else_has_the_worst_verdict(tmp_path):
    plan_of(tmp_path, *BOTH)
    for number, label, verdict, why in (
        (1, "amp=o2", "unknown", "it was not seen"),
        (1, "amp=o2", "emulated", "in float32"),
        (0, "amp=o0", "contradicted", "float16 was"),
    ):
        change(tmp_path, number, observed={"verdict": verdict, "why": why})
        observed = concluded(tmp_path)["observed"]
        assert (observed["verdict"], observed["why"]) == (verdict, f"{label}: {why}")


def test_an_arm_that_ran_out_of_memory_leaves_it_done_and_its_proof_unknown(tmp_path):
    plan_of(tmp_path, BOTH[0], ("o2", [], {"failed": "out of memory"}))
    values = concluded(tmp_path)
    assert (values["status"], values["reason"]) == ("done", None)
    assert values["observed"]["why"] == "amp=o2: nothing was observed"
    row = values["comparison"]["arms"][1]
    assert (row["state"], row["reason"], row["result"]) == ("failed", "it ran out of memory", None)


def test_the_arm_that_failed_is_the_reason(tmp_path):
    plan_of(tmp_path, BOTH[0], ("o2", [], {"failed": "exit code 9"}))
    values = concluded(tmp_path, State("failed", "the trainer ended", attempt=1, exit_code=1))
    assert (values["status"], values["reason"]) == ("failed", "amp=o2: its trainer ended with exit code 9")


def test_a_listing_writes_nothing_into_a_comparison_whose_job_was_killed(tmp_path):
    folder = tmp_path / "20260102-030405-brave-otter"
    folder.mkdir()
    plan_of(folder, *BOTH)
    store.write_json(folder / "status.json", {"schema": 1, "state": "stopped", "attempt": 1})
    before = sorted(folder.rglob("*"))
    backends.settle(backends.states_of([Run(str(tmp_path), folder.name)]))
    assert sorted(folder.rglob("*")) == before
    assert concluded(folder, State("stopped", attempt=1))["status"] == "stopped"


@pytest.mark.parametrize("arms", [None, 7, [7], [{"arm": 3}], {}, [{"swept": []}]])
def test_a_plan_without_arms_leaves_no_result(tmp_path, arms):
    arm(tmp_path, 0, "o0", NOISE)
    plan = {"schema": 1} if arms is None else {"schema": 1, "arms": arms, "comparison": {"rounds": "x"}}
    store.write_json(tmp_path / "plan.json", plan)
    write_result.write(tmp_path, DONE)
    assert not (tmp_path / "result.json").exists()


def test_values_of_another_type_are_left_out(tmp_path):
    plan_of(tmp_path, *BOTH)
    change(tmp_path, 1, peak_memory_bytes="much", wall_seconds=None, updates=3, loss_scale={"skipped_steps": []})
    control = store.read_json(tmp_path / "arms/00/result.json")
    assert concluded(tmp_path)["peak_memory_bytes"] == control["peak_memory_bytes"]
