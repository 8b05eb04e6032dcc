"""`python -m benchmarks [NAME ...] [--save]`: all of them, or those named; exit code 1 where a claim misses."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks import hardware, places, report
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
    "step-o0": "steps_torch:mnist:o0",
    "step-o1": "steps_torch:mnist:o1",
    "step-o2": "steps_torch:mnist:o2",
    "step-simplenet": "steps_torch:simplenet",
    "step-resnet50": "steps_torch:resnet50",
    "step-efficientnet": "steps_torch:efficientnet",
    "step-gan": "steps_torch:gan",
    "step-added": "steps_torch:added",
    "step-gpt-o0": "steps_gpt:step:o0:float32",
    "step-gpt-o1": "steps_gpt:step:o1:bfloat16",
    "step-gpt-o2": "steps_gpt:step:o2:bfloat16",
    "step-gpt-o1-float16": "steps_gpt:step:o1:float16",
    "step-gpt-o2-float16": "steps_gpt:step:o2:float16",
    "step-gpt-fsdp": "sharded:fsdp",
    "step-nanogpt": "steps_gpt:nanogpt",
    "observer-step": "observer:step",
    "observer-others": "observer:others",
    "script-step": "script_steps:torch_counted",
    "input-synthetic": "steps_torch:input_synthetic",
    "input-cifar": "steps_torch:input_cifar",
    "tensorflow-step-o0": "steps_tensorflow:mnist:o0",
    "tensorflow-step-o1": "steps_tensorflow:mnist:o1",
    "tensorflow-step-o2": "steps_tensorflow:mnist:o2",
    "tensorflow-step-simplenet": "steps_tensorflow:simplenet",
    "tensorflow-step-resnet50": "steps_tensorflow:resnet50",
    "tensorflow-step-efficientnet": "steps_tensorflow:efficientnet",
    "tensorflow-step-gan": "steps_tensorflow:gan",
    "tensorflow-step-added": "steps_tensorflow:added",
    "tensorflow-input-synthetic": "steps_tensorflow:input_synthetic",
    "tensorflow-input-cifar": "steps_tensorflow:input_cifar",
    "paddle-step-simplenet": "steps_paddle:simplenet",
    "masters": "masters:step",
    "verify-record": "step_record:cost",
    "telemetry": "telemetry:cost",
    "slurm-submit": "slurm:submit",
    "slurm-sweep": "slurm:sweep",
    "slurm-start": "slurm:start",
    "slurm-ls": "slurm:ls",
    "ssh-submit": "ssh:submit",
    "start-docker": "containers:start:docker",
    "start-apptainer": "containers:start:apptainer",
}
"""Name on the command line -> module, function, and its arguments after the folder; imported when it is run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all where none is named")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results/")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(BENCHMARKS)}")
    machine = hardware.describe()
    results = []
    for name in options.names or BENCHMARKS:
        try:
            measured = run(name)
        except Skipped as reason:
            print(f"{name} was skipped: {reason}", flush=True)
            continue
        results.append(measured)
        print(f"{name}: {measured.claim}", flush=True)
        for what, timing in measured.timings.items():
            print(f"    {report.seconds(timing.median):>8} ({report.seconds(timing.fastest)} at best)  {what}")
        OUT.mkdir(exist_ok=True)
        text = json.dumps({**report.to_json(measured), "hardware": machine}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if not results:
        return 0
    print("\n" + "\n".join(report.lines(results)))
    if options.save:
        stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hardware.machine_class(machine)}"
        print(f"saved in {report.save(RESULTS, stem, results, machine)}")
    return 0 if all(measured.holds for measured in results) else 1


def run(name: str) -> Measured:
    """Run one benchmark in a process of its own, in which no other left anything: threads, memory, switches.

    Raises `Skipped` where this machine lacks what it needs.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(places.run, BENCHMARKS[name]).result()


if __name__ == "__main__":
    sys.exit(main())
