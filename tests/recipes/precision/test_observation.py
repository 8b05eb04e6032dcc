"""The head that every framework's report begins with."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.precision import observation, verdict
from recipes.precision.levels import Amp


def head(amp: Amp | None = None, **other: Any) -> dict[str, Any]:
    asked = amp or Amp(level="o1")
    given: dict[str, Any] = {"allow": (), "deny": (), "tf32": False, "device": "cpu", "parameters": [], **other}
    return observation.head(3, amp=asked, dtype="bfloat16", **given)


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


def test_the_rule_speaks_of_float32_parameters_only_where_the_framework_does() -> None:
    assert "float32_parameters" not in head()["rule"]
    assert head(float32_parameters=True)["rule"]["float32_parameters"] is True
