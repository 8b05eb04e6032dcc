"""`python -m benchmarks.gpu`: the speed of mixed precision on this GPU, and whether it computes correctly there.

Needs torch (2.4 or newer) and this repository's `recipes/`. Prints one table and writes one JSON file, anew after each
row, so that if it is killed only the remaining rows are lost. With `--minutes` it ends by then: rows that don't fit are
left out, with the reason. `--device cpu --tiny` rehearses it anywhere, with meaningless figures. Exit code 1 where a
check fails or a row breaks; targets that are missed are only reported.

`python -m benchmarks.gpu day` is the first day on a GPU: checks with plain Python beside them, for ten minutes, and a
folder to send back (`benchmarks.day`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.campaign import ceilings, checks, kernels, language, turns
from benchmarks.campaign.aims import Aim, judge
from benchmarks.campaign.recipes import task
from benchmarks.campaign.rows import Bench, Budget, Row, Task
from benchmarks.day import __main__ as day
from benchmarks.day import machine, processes
from benchmarks.day.checks import LATE, write

HERE = Path(__file__).parent
REHEARSAL = "REHEARSAL: tiny sizes, figures that mean nothing"
BAD_SIZES = ("amp=o1", "amp.dtype=float16", "train.channels=[63,63,31,7]", "batch=4090")
"""Sizes of the GAN that tensor cores can't use; a rehearsal has its own."""
START_SECONDS = 30
"""Allowance for a process to start and initialise the GPU."""


def tasks() -> list[Task]:
    """All tasks, the most important first: the last ones may be left out for lack of time."""
    return [
        *ceilings.tasks(),
        *checks.tasks(),
        *language.checks(),
        task("simplenet", "o0 ieee", "amp=o0", "tf32=false", estimate=20),
        task("simplenet", "o0 tf32", "amp=o0", "tf32=true", rehearsed=False),
        task("simplenet", "o1", "amp=o1"),
        task("simplenet", "o2", "amp=o2"),
        task("simplenet", "o3", "amp=o3", rehearsed=False),
        task("resnet50", "o0 ieee 256", "amp=o0", "tf32=false", "batch=256", estimate=20, rehearsed=False),
        task("resnet50", "o0 tf32 256", "amp=o0", "tf32=true", "batch=256", rehearsed=False),
        task("resnet50", "o1 256", "amp=o1", "batch=256", rehearsed=False),
        task("resnet50", "o2 256", "amp=o2", "batch=256"),
        *turns.tasks(),
        *language.tasks(),
        task("resnet50", "o0 ieee 128", "amp=o0", "tf32=false", "batch=128", rehearsed=False),
        task("resnet50", "o1 float16 256", "amp=o1", "amp.dtype=float16", "batch=256", rehearsed=False),
        task("resnet50", "o2 float16 256", "amp=o2", "amp.dtype=float16", "batch=256", rehearsed=False),
        task("efficientnet", "o0 ieee 128", "amp=o0", "tf32=false", "batch=128", rehearsed=False),
        task("efficientnet", "o1 float16 256", "amp=o1", "amp.dtype=float16", "batch=256", rehearsed=False),
        task("efficientnet", "o1 float16 128", "amp=o1", "amp.dtype=float16", "batch=128", rehearsed=False),
        task("efficientnet", "o1 256", "amp=o1", "batch=256", rehearsed=False),
        task("efficientnet", "o2 256", "amp=o2", "batch=256"),
        task("gan", "o0 ieee", "amp=o0", "tf32=false", rehearsed=False),
        task("gan", "o0 tf32", "amp=o0", "tf32=true", rehearsed=False),
        task("gan", "o1 float16", "amp=o1", "amp.dtype=float16", rehearsed=False),
        task("gan", "o1 float16 unscaled", "amp=o1", "amp.dtype=float16", "loss_scale=none", rehearsed=False),
        task("gan", "o1 float16 bad sizes", *BAD_SIZES, rehearsed=False),
        task("gan", "o1", "amp=o1", rehearsed=False),
        task("gan", "o2", "amp=o2"),
        task("simplenet", "o1 float16", "amp=o1", "amp.dtype=float16", rehearsed=False),
        task("simplenet", "o2 float16", "amp=o2", "amp.dtype=float16"),
        checks.published(),
        *kernels.tasks(),
        *(apart(alone) for alone in APART),
    ]


APART = [
    task("resnet50", "o1 compiled 256", "amp=o1", "compile=true", "batch=256", estimate=100, rehearsed=False),
    task("resnet50", "o1 compiled 512", "amp=o1", "compile=true", "batch=512", estimate=100, rehearsed=False),
    *language.compiled(),
    *turns.deterministic(),
]
"""Those that run in processes of their own."""


def apart(task: Task) -> Task:
    """Run the task in a process of its own, within the remaining time.

    What is compiled, and cuBLAS's workspace for deterministic products, stay for a whole process; and after some faults
    a process can't use its GPU any more.
    """

    def run(bench: Bench) -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="apart-") as folder:
            path = Path(folder, "rows.json")
            words = ["--device", bench.device.type, "--alone", task.part, task.name, "--out", str(path)]
            argv = [sys.executable, "-m", "benchmarks.gpu", *words, *(["--tiny"] if bench.tiny else [])]
            left = max(1.0, min(2 * task.estimate + START_SECONDS, bench.end - time.monotonic()))
            done = processes.run(argv, seconds=left, cwd=HERE.parent)
            if done.returncode == LATE:
                raise subprocess.TimeoutExpired(argv, left)
            if not path.exists():
                raise RuntimeError(f"it ended with exit code {done.returncode}: {done.stderr[-300:]}")
            return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]

    return dataclasses.replace(task, run=run)


def main(words: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if words is None else list(words)
    if given[:1] == ["day"]:
        return day.main(given[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with sizes that any machine can do")
    parser.add_argument("--minutes", type=float, help="time for all of it; as much as the rows may take where not said")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="of ceiling, check, the recipes and more")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="the JSON file; benchmarks/out/gpu.json where none is named")
    parser.add_argument("--save", action="store_true", help="keep JSON and table in benchmarks/results/")
    options = parser.parse_args(given)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA GPU here; --device cpu --tiny rehearses without one")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu needs --tiny: full sizes take hours on a CPU")
    if options.save and options.tiny:
        parser.error("--save with --tiny: the figures of a rehearsal are not kept")
    chosen = [task for task in tasks() if not options.only or task.part in options.only]
    if options.alone:
        chosen = [task for task in (*APART, *tasks()) if [task.part, task.name] == options.alone][:1]
    if not chosen:
        parser.error(
            f"--only {' '.join(options.only)}: the parts are {', '.join(dict.fromkeys(task.part for task in tasks()))}"
        )
    began = time.monotonic()
    seconds = 60 * options.minutes if options.minutes else START_SECONDS + sum(task.estimate for task in chosen)
    bench = Bench(device=torch.device(options.device), tiny=options.tiny, seconds=2.0, end=began + seconds)
    budget = Budget(seconds)
    path = options.out or HERE / "out" / "gpu.json"
    if options.tiny:
        print(REHEARSAL)
    print(f"{len(chosen)} rows, at most {seconds / 60:.0f} minutes; into {path}", flush=True)
    about = hardware()
    measured: list[Row] = []
    aims: list[Aim] = []

    def document(ended: bool) -> dict[str, Any]:
        return to_json(about, measured, aims, ended=ended, rehearsal=options.tiny, seconds=time.monotonic() - began)

    write(path, document(ended=False))  # a Ctrl-C in the first row names it
    for planned in chosen:
        try:
            rows = budget.run(planned if bench.usable() else apart(planned), bench)
        except KeyboardInterrupt:
            print(f"stopped; the rows above are in {path}", flush=True)
            return 130
        if states := machine.state_now():  # at once, while the clocks are those of the row
            rows = [dataclasses.replace(row, more={**row.more, "gpus": states}) for row in rows]
        measured += rows
        aims = [] if options.tiny else judge(measured)
        write(path, document(ended=False))
        for row in rows:
            print(line(row), flush=True)
    write(path, document(ended=True))
    print("\n".join(["", "aims:", *([aim_line(aim) for aim in aims] or ["  not judged in a rehearsal"])]))
    print(f"\n{time.monotonic() - began:.0f} s; written to {path}" + (f"; {REHEARSAL}" if options.tiny else ""))
    if options.save:
        stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{about['gpu'].lower().replace(' ', '-')}"
        write(HERE / "results" / f"{stem}.json", document(ended=True))
        (HERE / "results" / f"{stem}.md").write_text(markdown(measured, aims, about), encoding="utf-8")
    return 1 if any(is_broken(row) for row in measured) else 0


def is_broken(row: Row) -> bool:
    """Whether a check failed or a row has no value for another reason than time or memory."""
    excused = ("out of time", "out of memory", "not rehearsed", "not on this device")
    return row.passed is False or (bool(row.left_out) and not row.left_out.startswith(excused))


def line(row: Row) -> str:
    """One row of the table."""
    return f"{row.part:13} {row.name:42} {amount(row):>22}  {details(row)}".rstrip()


def amount(row: Row) -> str:
    if row.left_out:
        return "-"
    if row.passed is not None:
        return "passed" if row.passed else "FAILED"
    assert row.value is not None
    return f"{row.value:,.4g} {row.unit}" if row.value < 10000 else f"{row.value:,.0f} {row.unit}"


def details(row: Row) -> str:
    """Further values of a row."""
    if row.left_out:
        return f"left out: {row.left_out}"
    more, parts = row.more, []
    if row.passed is False:
        return json.dumps({name: value for name, value in more.items() if name != "gpus"})
    if more.get("seconds"):
        parts.append(f"{more['seconds'] * 1000:.4g} ms a step")
    if more.get("tflops"):
        parts.append(f"{more['tflops']:.4g} TFLOP/s")
    if more.get("peak_memory_bytes"):
        parts.append(f"{more['peak_memory_bytes'] / 2**30:.2f} GiB")
    if more.get("dtype"):
        parts.append(f"{more['dtype']} {more['verdict']}")
    if more.get("finite") is False:
        parts.append("THE LOSS IS NOT FINITE")
    if more.get("ratios"):
        parts.append(f"{min(more['ratios']):.3f} to {max(more['ratios']):.3f}")
    if more.get("published_gains"):
        parts.append(more["published_gains"])
    if more.get("busy_seconds"):
        parts.append(f"{more['busy_seconds'] * 1000:.4g} ms busy a step")
    return ", ".join(parts)


def aim_line(aim: Aim) -> str:
    ratio = "-" if aim.ratio is None else f"{aim.ratio:.3f}"
    return f"  {aim.verdict:13} {aim.claim}: {ratio} (at least {aim.least:g})"


def hardware() -> dict[str, Any]:
    """The hardware and versions that the figures belong to, without names of machines or people."""
    about: dict[str, Any] = {
        "gpu": "none",
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        about["gpu"] = properties.name
        about["memory_gib"] = round(properties.total_memory / 2**30, 1)
        about["compute_capability"] = f"{properties.major}.{properties.minor}"
        driver = Path("/sys/module/nvidia/version")
        about["driver"] = driver.read_text().strip() if driver.exists() else None
    return about


def to_json(
    about: dict[str, Any], rows: Sequence[Row], aims: Sequence[Aim], *, ended: bool, rehearsal: bool, seconds: float
) -> dict[str, Any]:
    """`ended` is False while rows are still to be added."""
    return {
        "schema": 1,
        "rehearsal": rehearsal,
        "ended": ended,
        "hardware": about,
        "seconds": seconds,
        "rows": [dataclasses.asdict(row) for row in rows],
        "aims": [{**dataclasses.asdict(aim), "verdict": aim.verdict} for aim in aims],
    }


def markdown(rows: Sequence[Row], aims: Sequence[Aim], about: dict[str, Any]) -> str:
    text = ["# On a GPU", "", ", ".join(f"{key} {value}" for key, value in about.items() if value), ""]
    text += ["| part | what | figure | |", "| --- | --- | --- | --- |"]
    text += [f"| {row.part} | {row.name} | {amount(row)} | {details(row)} |" for row in rows]
    text += ["", *(f"- {aim_line(aim).strip()}" for aim in aims)]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
