"""`run`: check everything, then start it; stay with it where it runs here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.compare import experiments
from launcher.compare.ended import last_words
from launcher.config import request
from launcher.plan.resolve import resolve
from launcher.ssh.probe_client import probe_each
from launcher.ui.foreground import submit_and_follow


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, starts=True)
    if words.help:
        from launcher.commands.help import keys

        print(keys(words.config_dirs), end="")
        return 0
    if (repeated := experiments.requested(words)) is not None:
        from launcher.compare.planning import of_experiment

        return of_experiment(repeated, arguments, words)
    asked = request.compose(words)
    if words.cfg:
        request.print_configuration(asked)
        return 0
    specs = request.to_specs(asked)
    facts = probe_each(specs, make=False)
    plans = [resolve(spec, host) for spec, host in zip(specs, facts, strict=True)]
    if not all(host.uv_is_made for host in facts):  # after what is refused, as that takes minutes
        facts = probe_each(specs)
        plans = [resolve(spec, host) for spec, host in zip(specs, facts, strict=True)]
    for line in dict.fromkeys(line for plan in plans for line in plan.advice):
        print(f"note: {line}", file=sys.stderr)
    return submit_and_follow(plans, facts[0], specs, last_words)
