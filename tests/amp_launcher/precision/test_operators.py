"""Operators by their names: which are known to multiply matrices, and which a pattern may ignore."""

from __future__ import annotations

import pytest

from amp_launcher.precision import operators
from amp_launcher.typed import SettingsError


def test_no_pattern_may_ignore_a_known_product() -> None:
    for pattern in ("aten.*", "*", "aten.mm", "aten.add?m", "*.bmm"):
        with pytest.raises(SettingsError, match="which multiplies matrices"):
            operators.check_ignored("proof.ignore", [pattern])
    operators.check_ignored("proof.ignore", ["mylib.*", "aten.gelu"])


@pytest.mark.parametrize(
    ("entry", "pattern", "ignored"),
    [
        ("mylib.gelu.default", "mylib.*", True),
        ("mylib.gelu.default", "mylib.gelu", True),
        ("mylib.gelu in compiled code", "mylib.*", True),
        ("mylib.gelu.default", "other.*", False),
        ("aten._trilinear.default", "aten._trilinear", False),
        ("aten._euclidean_dist.default", "*dist*", False),
        ("aten._thnn_fused_lstm_cell.default", "*lstm*", True),
        ("aten.quantize_linear.default", "*linear*", True),
        ("mylib", "mylib", False),
        ("compiled code (mylib.x)", "*lib*", False),
    ],
)
def test_an_ignored_operator_leaves_the_question(entry: str, pattern: str, ignored: bool) -> None:
    (report,) = operators.ignoring([{"unaccounted": {entry: 2}}], [pattern])
    assert report.get("ignored", {}) == ({entry: 2} if ignored else {})
    assert report["unaccounted"] == ({} if ignored else {entry: 2})
