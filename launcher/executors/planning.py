"""Plans of the jobs that were asked for, by one look at the host that they go to."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher import waiting
from launcher.config.spec import JobSpec
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.ssh.probe_client import probe_each


def plan_each(specs: Sequence[JobSpec]) -> tuple[list[Plan], list[Facts]]:
    """A plan of each job, and the facts of their host for each. Prints their advice. Raises `LauncherError`."""
    facts = probe_each(specs, make=False)
    plans = resolve_each(specs, facts)
    if not all(host.uv_is_made for host in facts):  # after what is refused, as that takes minutes
        facts = probe_each(specs)
        plans = resolve_each(specs, facts)
    say_advice(plans)
    return plans, facts


def resolve_each(specs: Sequence[JobSpec], facts: Sequence[Facts]) -> list[Plan]:
    """The plan of each job, from its facts. Raises `LauncherError`."""
    with waiting.counted(list(zip(specs, facts, strict=True)), "planning: {} of {}") as pairs:
        return [resolve(spec, host) for spec, host in pairs]


def say_advice(plans: Sequence[Plan]) -> None:
    """Print what the plans advise, each line once."""
    for line in dict.fromkeys(line for plan in plans for line in plan.advice):
        print(f"note: {line}", file=sys.stderr)
