"""`compare`: arms of one job, measured in turn on the same devices; then what they differ in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launcher.compare import comparison, experiments
from launcher.compare.experiments import ComparisonRequest
from launcher.compare.planning import carry_out
from launcher.config import request
from launcher.plan.model import Compare

HELP = """\
Measure a job in several modes against each other, and say what each gains and costs.

usage: python -m launcher compare [FILE.py] KEY=A,B[,C] [key=value ...] [compare.rounds=5] [compare.steps=50]
                                  [--plan] [--config-dir DIR] [--cfg job] [-- ARGUMENTS OF FILE.py]

The first of the listed values is the control, and the others are compared with it. Arms begin with the same weights,
see the same data in the same order, and run the same code, one block after another on the same devices: A B C, C B A,
A B C ...
They may differ in amp=o0,o1,o2, batch=128,256, xla=false,true, compile=, tf32=, image=, container=none,docker and most
other keys, not in recipe, seed, data and where the job runs; texts that may hold commas are listed as
env.NCCL_ALGO=choice(Ring,Tree), or python=choice(A,B). From five rounds on, ratios of throughput have an interval. An
arm that runs out of memory is a row of the table. One that is seen to run in another mode than was asked for ends
there; the others are measured, and then the comparison fails. A script of your own is started afresh for each block,
and its steps a second are compared.
`report` says it again later, `--plan` shows the script and starts nothing.

keys, in addition to those of `run --help`:
"""
HELP += "".join(
    f"  {comparison.PREFIX}{field.name:20} {field.metadata['help']} [{field.default}]\n"
    for field in dataclasses.fields(Compare)
)


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, own=("plan",), starts=True)
    if (repeated := experiments.requested(words)) is not None:
        return carry_out(repeated, arguments, words, plan_only=words.plan)
    how, rest = comparison.split_flags(words.overrides)
    words = dataclasses.replace(words, overrides=tuple(rest))
    cells = request.compose(words)
    if words.cfg:
        request.print_configuration(cells)
        return 0
    comparison.check_words(cells[0].words)
    comparison.check_listed(cells[0])
    listed = ComparisonRequest(how=how, cells=cells, specs=request.to_specs(cells, "arm"))
    return carry_out(listed, ["compare", *arguments], words, plan_only=words.plan)
