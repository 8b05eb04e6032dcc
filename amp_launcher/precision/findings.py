"""The verdicts, and what rules give for one observed step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROVED, CONTRADICTED, UNKNOWN = "proved", "contradicted", "unknown"
EMULATED = "emulated"
"""Operands were rounded to the dtypes of `amp.gemm` and multiplied in wider ones: the numbers are right, the arithmetic
is not."""
WORST_FIRST = (CONTRADICTED, EMULATED, UNKNOWN, PROVED)

Report = Mapping[str, Any]
"""`amp_launcher.precision.observation` says what it has."""
Finding = tuple[str, str]
"""A verdict other than proved, and the sentence that says why."""


def contradicted(why: str) -> Finding:
    return CONTRADICTED, why


def unknown(why: str) -> Finding:
    return UNKNOWN, why
