"""Reports where there are many runs, and the size of a page."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.listing import finished
from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import environment, launcher

FEW, SOME, MANY = 10, 100, 1_000
STEPS = 500
ROUNDS = 7


def many(folder: Path) -> Measured:
    """The page of all runs of a root, each of 500 steps. Named one by one: that is how a shell expands them."""
    environ = environment(folder)
    cases = {}
    for count in (MANY, FEW):
        root = folder / str(count)
        names = _measured(root, count)
        words = ["report", *names, "--html", str(folder / f"{count}.html"), f"run_root={root}"]
        cases[f"report of {count:,}"] = command(launcher(*words), folder, environ)
    timings = by_turns(cases, ROUNDS)
    size = (folder / f"{MANY}.html").stat().st_size
    return Measured(
        claim="`report` over 1,000 runs at most 12 times its time over ten",
        limit=12.0,
        timings=timings,
        note=f"the page of {MANY:,} runs has {size / 1e6:.2f} MB",
    )


def everything(folder: Path) -> Measured:
    """`report --all --html` where the page of each run is there already, as whenever it is typed again."""
    environ = environment(folder)
    cases = {}
    for count in (MANY, SOME):
        root = folder / f"all-{count}"
        _measured(root, count)
        words = ["report", "--all", "--html", str(folder / f"{count}-all.html"), f"run_root={root}"]
        cases[f"report --all of {count:,}"] = command(launcher(*words), folder, environ)
    # The first time, which writes the page of each run, is the warm-up.
    timings = by_turns(cases, ROUNDS)
    size = (folder / f"{MANY}-all.html").stat().st_size
    return Measured(
        claim="`report --all` as a page over 1,000 runs at most four times its time over 100",
        limit=4.0,
        timings=timings,
        note=f"the page of {MANY:,} runs has {size / 1e6:.2f} MB",
    )


def _measured(root: Path, count: int) -> list[str]:
    """Finished runs of 500 steps each. Returns their names."""
    finished(root, count)
    names = sorted(path.name for path in root.glob("2*"))
    for name in names:
        (root / name / "metrics.jsonl").write_text(_METRICS, encoding="utf-8")
    return names


def _row(step: int) -> dict[str, object]:
    return {
        "step": step,
        "epoch": step // 100,
        "loss": 2.3 / step,
        "lr": 1.0,
        "seconds": 0.037,
        "samples_per_second": 3459.5,
        "loss_scale": 65536.0,
        "skipped": False,
        "skipped_total": 0,
        "grad_norm": None,
        "memory_bytes": 536870912,
        "timed": step > 10,
        "time": 1767322800.0 + step,
    }


_METRICS = "".join(json.dumps(_row(step)) + "\n" for step in range(1, STEPS + 1))
