"""The head that every framework's report begins with."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from amp_launcher.precision import observation, verdict
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve

O1 = Amp(level="o1")


def head(amp: Amp = O1, **other: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"framework": "torch", "device": "cpu", "capability": None, "environ": {}}
    return observation.head(3, resolve(amp, LossScale(), **facts), parameters=[], **other)


def test_a_head_alone_proves_nothing() -> None:
    judged, why = verdict.judge([{**head(), "problems": ["this framework has no eyes"]}])
    assert judged == "unknown"
    assert "step 3: this framework has no eyes" in why


@pytest.mark.parametrize(
    ("amp", "masters"),
    [
        (Amp(level="o1"), False),
        (Amp(level="o2"), True),
        (Amp(level="o2", master_weights=False), False),
        (Amp(level="o3"), False),
    ],
)
def test_masters_are_expected_at_o2_alone_unless_they_were_declined(amp: Amp, masters: bool) -> None:
    assert head(amp)["rule"]["masters"] is masters


def test_only_a_framework_whose_parameters_are_all_float32_puts_that_into_the_rule() -> None:
    assert "float32_parameters" not in head()["rule"]
    assert head(float32_parameters=True)["rule"]["float32_parameters"] is True


@pytest.mark.parametrize(
    ("change", "added"),
    [
        ({}, {}),
        ({"loss_scale": LossScale(mode="static")}, {"scaled": True}),
        ({"lists": "refused"}, {"lists": "refused"}),
        ({"lists": "observed"}, {"deny": [], "either": ["conv2d"]}),
        ({"parallel": "fsdp"}, {"parallel": "fsdp"}),
        ({"parallel": "ddp"}, {}),
    ],
)
def test_the_rule_has_what_is_judged_by_it_and_no_more(change: dict[str, Any], added: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"framework": "torch", "device": "cpu", "capability": None, "environ": {}}
    resolved = dataclasses.replace(resolve(Amp(level="o1", deny=("conv2d",)), LossScale(), **facts), deny=("conv2d",))
    plain = {
        **{"level": "o1", "dtype": "bfloat16", "allow": [], "deny": ["conv2d"], "either": [], "keep_fp32": []},
        **{"masters": False, "tf32": False, "device": "cpu"},
    }
    rule = observation.head(3, dataclasses.replace(resolved, **change), parameters=[])["rule"]
    assert rule == {**plain, **added}


def test_a_guard_takes_an_observers_errors_once_and_lets_all_others_pass() -> None:
    failed: list[None] = []
    guard = observation.Guard(StopIteration, failed=lambda: failed.append(None))
    for _ in range(2):
        with guard:
            observation.head(3, None, parameters=[])
    (problem,) = guard.problems
    assert re.fullmatch(
        r"observing it failed: AttributeError: .* \(amp_launcher/precision/observation.py:\d+\)", problem
    )
    with guard:
        raise ValueError("another")
    assert guard.problems[1:] == ["observing it failed: ValueError: another"]
    assert len(failed) == 1
    for passing in (StopIteration, KeyboardInterrupt):
        with pytest.raises(passing), guard:
            raise passing
        with pytest.raises(passing):
            observation.Guard(StopIteration).hook(_raise)(passing)


def test_a_guarded_hook_returns_none_where_it_fails_and_is_not_called_again() -> None:
    guard = observation.Guard()
    called: list[int] = []
    hook = guard.hook(lambda divisor: called.append(divisor) or 6 // divisor)
    assert (hook(2), hook(0), hook(3), called) == (3, None, None, [2, 0])


def _raise(kind: type[Exception]) -> None:
    raise kind


def test_equal_calls_are_merged_and_their_work_is_added() -> None:
    facts: dict[str, Any] = {"functions": ["linear"], "kept": False, "device": "cpu"}
    one = observation.call("mm", "bfloat16", 3, backward=False, **facts)
    other = observation.call("mm", "bfloat16", 3, backward=True, calls=2, **facts)
    assert observation.merged([one, other, one]) == [{**one, "calls": 2, "flops": 6}, other]
    assert (one["compiled"], one["calls"]) == (False, 1)


def test_the_rule_has_the_layers_of_amp_gemm() -> None:
    amp = Amp(level="o2", dtype="bfloat16", gemm="fp8-tensorwise")
    assert "gemm" not in head(Amp(level="o2"))["rule"]
    assert head(amp, gemm_layers=Chosen(("up", "down"), {"head": "the output layer"}))["rule"]["gemm"] == {
        "format": "fp8-tensorwise",
        "layers": ["up", "down"],
        "left_out": {"head": "the output layer"},
    }
