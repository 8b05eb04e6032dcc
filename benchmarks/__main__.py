"""`python -m benchmarks [NAME ...] [--save]`: all of them, or those named; exit code 1 where a claim misses."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import hardware, report
from benchmarks.measure import Measured, Skipped
from benchmarks.places import OUT, RESULTS

BENCHMARKS = {
    "help": "startup:help",
    "ls": "startup:ls",
    "completion": "startup:completion",
    "plan": "startup:plan",
    "sweep": "sweeps:plan",
    "ls-many": "listing:many",
    "report-many": "reports:many",
    "step-o0": "training:o0",
    "step-o1": "training:o1",
    "step-o2": "training:o2",
    "tensorflow-step-o0": "training_tensorflow:o0",
    "tensorflow-step-o1": "training_tensorflow:o1",
    "tensorflow-step-o2": "training_tensorflow:o2",
    "step-simplenet": "recipes:simplenet",
    "step-resnet50": "recipes:resnet50",
    "step-efficientnet": "recipes:efficientnet",
    "step-gan": "recipes:gan",
    "input-cifar": "recipes:input_share",
    "masters": "masters:step",
    "telemetry": "telemetry:cost",
    "slurm-submit": "slurm:submit",
    "slurm-sweep": "slurm:sweep",
    "slurm-start": "slurm:start",
    "slurm-ls": "slurm:ls",
    "ssh-submit": "ssh:submit",
    "start-docker": "containers:docker",
    "start-apptainer": "containers:apptainer",
}
"""Name on the command line -> module and function, imported when it is run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all where none is named")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results/")
    options = parser.parse_args()
    unknown = [each for each in options.names if each not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(BENCHMARKS)}")
    machine = hardware.describe()
    found = []
    for name in options.names or BENCHMARKS:
        try:
            measured = run(name)
        except Skipped as reason:
            print(f"{name} was skipped: {reason}", flush=True)
            continue
        found.append(measured)
        print(f"{name}: {measured.claim}", flush=True)
        for what, timing in measured.timings.items():
            print(f"    {report.seconds(timing.median):>8} ({report.seconds(timing.fastest)} at best)  {what}")
        OUT.mkdir(exist_ok=True)
        text = json.dumps({**report.to_json(measured), "hardware": machine}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if not found:
        return 0
    print("\n" + "\n".join(report.lines(found)))
    if options.save:
        stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hardware.machine_class(machine)}"
        print(f"saved in {report.save(RESULTS, stem, found, machine)}")
    return 0 if all(each.holds for each in found) else 1


def run(name: str) -> Measured:
    """Run one benchmark in a folder of its own. Raises `Skipped` where this machine lacks what it needs."""
    module, _, function = BENCHMARKS[name].partition(":")
    benchmark = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return benchmark(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
