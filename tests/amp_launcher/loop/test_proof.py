"""What a verdict does to a run."""

from __future__ import annotations

import pytest

from amp_launcher.loop import proof


@pytest.mark.parametrize(
    ("kind", "required", "problem"),
    [
        ("contradicted", False, "what ran was not amp=o2: because"),
        ("emulated", True, "amp=o2 was emulated: because (require_proof=false lets that pass)"),
        ("emulated", False, None),
        ("unknown", True, "nothing proves that amp=o2 ran: because (require_proof=false lets that pass)"),
        ("unknown", False, None),
        ("proved", True, None),
    ],
)
def test_a_verdict_fails_a_run_where_it_has_to(kind: str, required: bool, problem: str | None) -> None:
    assert proof.problem("o2", required, kind, "because") == problem
