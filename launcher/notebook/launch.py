"""`launch` and `find`: from words to runs, as on the command line."""

from __future__ import annotations

from launcher.compare import experiments
from launcher.compare.planning import of_arms
from launcher.config import request
from launcher.errors import UsageError, of_program
from launcher.executors import planning
from launcher.notebook.runs import Runs
from launcher.runs import run_roots, selection
from launcher.runs.store import Run


def launch(*words: str) -> Runs:
    """Submit what `python -m launcher WORDS` would, and return at once: `launch("amp=o1,o2", "batch=128")`.

    A script of your own is the first word, and its arguments follow "--". The runs outlive the program; with
    "wait=true" this returns when they have ended. Raises `LauncherError`, and then nothing was submitted.
    """
    from launcher.executors.base import submit

    if not_texts := [word for word in words if not isinstance(word, str)]:
        raise UsageError(f'launch takes words as the command line does, such as "amp=o2", and not {not_texts[0]!r}')
    with of_program():
        asked = request.split_flags(words, starts=True)
        if asked.help or asked.cfg:
            raise UsageError("launch starts runs; `python -m launcher run` has --help and --cfg")
        if (repeated := experiments.requested(asked)) is not None:
            specs = repeated.specs
            plan, facts = of_arms(repeated, words)
            plans = [plan]
            planning.say_advice(plans)
        else:
            specs = request.to_specs(request.compose(asked))
            plans, (facts, *_) = planning.plan_each(specs)
        folders = submit(plans, specs, facts)
    runs = Runs([Run(str(folder.parent), folder.name) for folder in folders])
    if specs[0].launch.wait:
        runs.wait()
    return runs


def find(*names: str, run_root: str | None = None) -> Runs:
    """The runs of these names, as every command takes them, of this program or another: `find("wise-oasis")`.

    Raises `UsageError` for a name that is no run's, or several runs'.
    """
    if not names:
        raise UsageError('find takes names of runs or sweeps, such as find("wise-oasis")')
    with of_program():
        found = selection.find_all(names, run_roots.named(run_root))
    return Runs(list(dict.fromkeys(run for selected in found for run in selected.runs)))
