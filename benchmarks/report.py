"""Figures as a table, as JSON, and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured
from launcher.ui.tables import table

HEADER = ("benchmark", "ours", "baseline", "ratio", "95% interval", "ratio of fastest", "limit", "")


def to_json(name: str, measured: Measured) -> dict[str, Any]:
    ours, theirs, *_ = measured.timings
    return {
        "schema": 1,
        "name": name,
        "claim": measured.claim,
        "limit": measured.limit,
        "ratio": measured.ratio,
        "interval": measured.interval,
        "ratio_of_fastest": measured.ratio_of_fastest,
        "holds": measured.holds,
        "ours": ours,
        "theirs": theirs,
        "median_seconds": {name: timing.median for name, timing in measured.timings.items()},
        "fastest_seconds": {name: timing.fastest for name, timing in measured.timings.items()},
        "rounds": {name: len(timing.seconds) for name, timing in measured.timings.items()},
        "note": measured.note,
    }


def lines(results: Mapping[str, Measured]) -> list[str]:
    """A table for a terminal: medians, the ratio, the ratio of the fastest, and whether the claim holds."""
    rows = [
        (
            name,
            *(seconds(timing.median) for timing in list(measured.timings.values())[:2]),
            ratio(measured.ratio),
            interval(measured.interval),
            ratio(measured.ratio_of_fastest),
            ratio(measured.limit),
            "holds" if measured.holds else "misses",
        )
        for name, measured in results.items()
    ]
    return table(HEADER, rows, right=frozenset({1, 2, 3, 4, 5, 6}))


def markdown(results: Iterable[Mapping[str, Any]], hardware: Mapping[str, Any]) -> str:
    """The saved results as Markdown, with every baseline that was timed."""
    text = [
        "# Benchmarks",
        "",
        f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB, {hardware['system']}, "
        f"Python {hardware['python']}. Load average when it began: {hardware['load'][0]}.",
        "Times are medians. The ratio is the median over rounds in which each thing was timed once, in turn, with its "
        "95% interval. `python -m benchmarks` repeats it.",
        "",
        "| claim | ours | baseline | ratio | ratio of fastest | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        medians = result["median_seconds"]
        others = [name for name in medians if name != result["ours"]]
        baselines = "<br>".join(f"{name}: {seconds(medians[name])}" for name in others)
        spread = f" ({interval(result['interval'])})" if result.get("interval") else ""
        verdict = "holds" if result["holds"] else "misses"
        text.append(
            f"| {result['claim']} | {result['ours']}: {seconds(medians[result['ours']])} | {baselines} "
            f"| {ratio(result['ratio'])}{spread} | {ratio(result['ratio_of_fastest'])} | {verdict} |"
        )
    notes = [f"- {result['name']}: {result['note']}." for result in results if result["note"]]
    return "\n".join([*text, *(["", *notes] if notes else [])]) + "\n"


def save(folder: Path, stem: str, measured: Mapping[str, Measured], hardware: Mapping[str, Any]) -> Path:
    """Write the figures; keep saved ones that were not measured again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    results = {result["name"]: result for result in before}
    results.update({name: to_json(name, result) for name, result in measured.items()})
    path.write_text(
        json.dumps({"schema": 1, "hardware": hardware, "results": list(results.values())}, indent=1) + "\n",
        encoding="utf-8",
    )
    path.with_suffix(".md").write_text(markdown(results.values(), hardware), encoding="utf-8")
    return path


def seconds(value: float) -> str:
    """A time with three significant digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def ratio(value: float) -> str:
    if value > 0.2:
        return f"{value:.3f}" if value < 1.1 else f"{value:.2f}"
    return f"1/{1 / value:.0f}"


def interval(bounds: Sequence[float] | None) -> str:
    return f"{ratio(bounds[0])} to {ratio(bounds[1])}" if bounds else ""
