"""`doctor`: check the place that a job would go to, end to end, and say what to fix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from launcher.config import request
from launcher.doctor.examination import examine
from launcher.doctor.rules import Finding
from launcher.errors import UsageError

HELP = """\
Check this machine, or the cluster that is named, and run a job of a few steps there; say what to fix.

usage: python -m launcher doctor [key=value ...] [--json] [--config-dir DIR]

  key=value  as for run: cluster=ssh cluster.host=.., container=.., image=.., amp=.., gpus=..

Each line is ok, advice (it may hurt other jobs) or a problem (this job can't run).
Exit code 0 if all checks passed, 3 if there is a problem, 2 for invalid words.
"""


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, own=("json",))
    overrides = _small(words.overrides)
    spec = request.to_spec(dataclasses.replace(words, overrides=overrides), "doctor runs one job")
    findings = []
    for finding in examine(spec):
        findings.append(finding)
        if not words.json:
            print("\n".join(lines(finding)), flush=True)
    problems = sum(finding.level == "problem" for finding in findings)
    if words.json:
        found = list(map(dataclasses.asdict, findings))
        print(json.dumps({"schema": 1, "ok": not problems, "findings": found}, indent=1))
    elif problems:
        print(f"{problems} problem{'s' * (problems > 1)} found")
    else:
        print("all checks passed")
    return 3 if problems else 0


def lines(finding: Finding) -> list[str]:
    """A finding as it is shown."""
    shown = [f"{finding.level:8} {finding.about:10} {finding.message}"]
    return [*shown, f"{'':19} -> {finding.remedy}"] if finding.remedy else shown


def _small(overrides: Sequence[str]) -> tuple[str, ...]:
    """The words, with what makes the job small. Raises `UsageError` for a script, which nothing makes small."""
    if "recipe=script" in overrides:
        raise UsageError("recipe=script: doctor runs a small job of a recipe; leave the script out")
    keys = {override.partition("=")[0] for override in overrides}
    small = ["checkpoint.every=0", "name=doctor"]
    small += [] if "epochs" in keys else ["steps=6"]
    small += [] if {"recipe", "data"} & keys else ["data=synthetic", "batch=64"]
    small += ["cluster.time=10"] if "cluster=slurm" in overrides else []
    return (*small, *overrides)  # of several words for a key the last holds
