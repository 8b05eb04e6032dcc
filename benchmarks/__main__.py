"""`python -m benchmarks [NAME ...] [--save]`: all of them, or those named; exit code 1 where a claim misses.

`python -m benchmarks scripts` tries scripts that nobody here wrote, and has options of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks import hardware, places, report, scripts
from benchmarks.measure import Measured, Skipped
from benchmarks.places import OUT, RESULTS

_RECIPES = ("simplenet", "resnet50", "efficientnet", "gan")
BENCHMARKS = {
    "help": "startup:help",
    "ls": "startup:ls",
    "completion": "startup:completion",
    "plan": "startup:plan",
    "sweep": "sweeps:plan",
    "ls-many": "listing:many",
    "ls-one": "listing:find",
    "ls-all": "listing:every",
    "clean": "hostile:clean",
    "report-many": "reports:many",
    "report-all": "reports:everything",
    **{f"step-{level}": f"steps:recipe:torch:mnist:{level}" for level in ("o0", "o1", "o2")},
    **{f"step-{recipe}": f"steps:recipe:torch:{recipe}:o1" for recipe in _RECIPES},
    "step-added": "steps:added:torch:o1",
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
    "script-step-compiled": "script_steps:torch_counted_compiled",
    "script-step-o1": "script_steps:torch_cast",
    "script-step-o1-compiled": "script_steps:torch_cast_compiled",
    "script-start": "script_steps:torch_start",
    "input-synthetic": "steps:input_share:torch:mnist:o1",
    "input-cifar": "steps:input_share:torch:efficientnet:o1",
    **{f"tensorflow-step-{level}": f"steps:recipe:tensorflow:mnist:{level}" for level in ("o0", "o1", "o2")},
    **{f"tensorflow-step-{recipe}": f"steps:recipe:tensorflow:{recipe}:o2" for recipe in _RECIPES},
    "tensorflow-step-added": "steps:added:tensorflow:o2",
    "tensorflow-input-synthetic": "steps:input_share:tensorflow:mnist:o2",
    "tensorflow-input-cifar": "steps:input_share:tensorflow:efficientnet:o2",
    "paddle-step-simplenet": "steps_paddle:simplenet",
    "masters": "masters:step",
    "verify-record": "step_record:cost",
    "telemetry": "telemetry:cost",
    "pace": "pace:cost",
    "slurm-submit": "slurm:submit",
    "slurm-sweep": "slurm:sweep",
    **{f"slurm-cells-{verb}": f"slurm:cells:{verb}" for verb in ("plan", "submit", "ls", "ls-sweep", "cancel", "rm")},
    "slurm-start": "slurm:start",
    "slurm-ls": "slurm:ls",
    "ssh-submit": "ssh:submit",
    "start-docker": "containers:start:docker",
    "start-apptainer": "containers:start:apptainer",
}
"""Name on the command line -> module, function, and its arguments after the folder; imported when it is run."""


def main() -> int:
    if sys.argv[1:2] == ["scripts"]:
        return scripts.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all where none is named")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results/")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(BENCHMARKS)}")
    machine = hardware.describe()
    results = {}
    for name in options.names or BENCHMARKS:
        try:
            measured = run(name)
        except Skipped as reason:
            print(f"{name} was skipped: {reason}", flush=True)
            continue
        results[name] = measured
        print(f"{name}: {measured.claim}", flush=True)
        for what, timing in measured.timings.items():
            print(f"    {report.seconds(timing.median):>8} ({report.seconds(timing.fastest)} at best)  {what}")
        OUT.mkdir(exist_ok=True)
        text = json.dumps({**report.to_json(name, measured), "hardware": machine}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if not results:
        return 0
    print("\n" + "\n".join(report.lines(results)))
    if options.save:
        stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hardware.machine_class(machine)}"
        print(f"saved in {report.save(RESULTS, stem, results, machine)}")
    return 0 if all(measured.holds for measured in results.values()) else 1


def run(name: str) -> Measured:
    """Run one benchmark in a process of its own, in which no other left anything: threads, memory, switches.

    Raises `Skipped` where this machine lacks what it needs.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(places.run, BENCHMARKS[name]).result()


if __name__ == "__main__":
    sys.exit(main())
