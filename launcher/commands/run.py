"""`run`: check everything, then start it; stay with it where it runs here."""

from __future__ import annotations

from collections.abc import Sequence

from launcher import compare, search
from launcher.compare.last_words import last_words
from launcher.config import request
from launcher.executors import planning
from launcher.ui.foreground import submit_and_follow


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, starts=True)
    if words.help:
        from launcher.commands.help import keys

        print(keys(words.config_dirs), end="")
        return 0
    if search.is_asked(words.overrides):
        from launcher.search import command

        return command.start(words, arguments)
    if compare.is_experiment(words.overrides):
        from launcher.compare import experiments
        from launcher.compare.planning import carry_out

        if (repeated := experiments.requested(words)) is not None:
            return carry_out(repeated, arguments, words)
    cells = request.compose(words)
    if words.cfg:
        request.print_configuration(cells)
        return 0
    specs = request.to_specs(cells)
    plans, facts = planning.plan_each(specs)
    return submit_and_follow(plans, facts[0], specs, last_words)
