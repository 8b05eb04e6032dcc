"""Parts (c) and (d): small scripts alone and under the launcher, with the same losses and weights to the last bit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.day import machine
from benchmarks.day.checks import Check, Day, first_other

SCRIPT = str(Path(__file__).with_name("canary.py"))
CANARIES = {"o0": "products attention compiled", "o1": "products convolutions attention compiled"}
"""By level."""
THOROUGH = {
    "o0": "convolutions lstm recomputed channels_last loaded profiled decomposed reduced autotuned graphed triton",
    "o1": "inner recomputed channels_last loaded profiled decomposed",
}
"""Further ones. At o1 cuDNN's LSTM and a product by Triton are contradicted, so that their scripts end."""
AT_ONCE = 4
"""Scripts that run alone at the same time: most of their time is torch's start, on one core."""
Row = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""The script, the level, what it is given alone in place of the level, and words for the launcher."""
BY_HAND = ("by-hand",)


def canaries(day: Day) -> Iterator[Check]:
    if day.tiny:
        return _beside(day, [("products", "o1", BY_HAND, ())])
    rows: list[Row] = [("inner", "o1", (), ("train.precision=script",))]
    for names_by_level in (CANARIES, *([THOROUGH] if day.thorough else [])):
        for level, names in names_by_level.items():
            rows += [(name, level, BY_HAND if level == "o1" else (), ()) for name in names.split()]
    return _beside(day, rows)


def overflow(day: Day) -> Iterator[Check]:
    return _beside(day, [("fused", "o1", (), ("amp.dtype=float16", "train.precision=script"))])


def _beside(day: Day, rows: Sequence[Row]) -> Iterator[Check]:
    """First each script alone, several at once, as no lock of the launcher is held; then each under the launcher."""

    def alone(row: Row) -> subprocess.CompletedProcess[str]:
        return day.python(SCRIPT, row[0], day.device, *row[2])

    with ThreadPoolExecutor(1 if machine.is_exclusive() else AT_ONCE) as pool:
        expected = list(pool.map(alone, rows))
    for row, done in zip(rows, expected, strict=True):
        yield _under(day, row, done)


def _under(day: Day, row: Row, alone: subprocess.CompletedProcess[str]) -> Check:
    name, level, _, words = row
    run = f"{name}-{level}" + "-own" * ("train.precision=script" in words)
    under = day.launcher(SCRIPT, f"amp={level}", *words, *day.one_gpu(), f"name={run}", "--", name, day.device)
    log = _log(day, run)
    same = alone.returncode == under.returncode == 0 and alone.stdout.splitlines() == log
    facts = {"alone": alone.returncode, "here": under.returncode} | day.seen(run)
    if not same:
        facts |= {"lines": len(log), "first_other": first_other(alone.stdout.splitlines(), log)}
        facts |= day.why(alone) or day.why(under)
    return Check(name=f"{run} computes what it does alone", passed=same, facts=facts)


def _log(day: Day, name: str) -> list[str]:
    """The lines that the script printed: numbers and a digest."""
    shown = day.launcher("logs", name).stdout.splitlines()
    return [line for line in shown if re.fullmatch(r"-?0x[\da-f.]+p[+-]\d+|-?inf|nan|[\da-f]{64}", line)]
