"""The seam: whatever is submitted goes through `executor.submit(execute, plan)` of the executor for its cluster."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import core
from submitit.core.utils import DelayedSubmission

import launcher
from launcher.code.snapshot import Code
from launcher.config.spec import JobSpec
from launcher.errors import UsageError, of_program
from launcher.executors import follower, submission
from launcher.executors.execute import execute
from launcher.executors.job import RunJob
from launcher.executors.submission import Source
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.probe.facts import Facts

EXECUTORS = {"local": "LocalExecutor", "slurm": "SlurmExecutor", "ssh": "SshExecutor"}
"""The kind of a plan's cluster -> the executor that runs it, by its name in `launcher`."""

Parameters = Mapping[str, Callable[[Any], str]]
"""submitit's names of parameters -> the setting that means the same."""


class PlanExecutor(core.Executor):
    """Takes `execute` and plans of one kind of cluster. `folder` is the run root of the plans that it makes; `words`
    are further settings of them, as the command line takes them (`"python=/opt/env/bin/python"`)."""

    job_class = RunJob
    kind: ClassVar[str]
    PARAMETERS: ClassVar[Parameters] = {
        "name": "name={}".format,
        "gpus_per_node": "gpus={}".format,
        "timeout_min": "cluster.time={}".format,
        "nodes": "nodes={}".format,
        "tasks_per_node": "train.processes={}".format,
    }

    def __init__(self, folder: str | Path | None = None, words: Sequence[str] = ()) -> None:
        core.Executor.__init__(self, folder or ".")
        self._words = (f"cluster={self.kind}", *([f"run_root={folder}"] if folder else ()), *words)
        self._sources: dict[int, Source] = {}
        self._code: dict[str, Code] = {}
        """By digest: the list of a large repository's files is kept once, however many plans it has."""
        self._facts: dict[Any, Facts] | None = None
        """In a batch: what was found out for its plans, which share a host and a snapshot of the code."""

    @contextlib.contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """submitit's batch: what is submitted in it is one sweep. Host and code are looked at once for all of its
        plans, so they run the code as it was at the first of them."""
        with super().batch(allow_implicit_submissions):
            self._facts = {}
            try:
                yield
            finally:
                self._facts = None

    def plan(self, *words: str) -> Plan:
        """The plan of one job on this cluster, as the command line makes it: `executor.plan("amp=o2", "batch=512")`.

        `submit(execute, plan)` starts it. Raises `LauncherError` for what can't be asked, or can't run there.
        """
        from launcher.plan.resolve import resolve

        with of_program():
            spec = self._spec(words)
            facts = self._look(spec)
            plan = resolve(spec, facts)
        self.knows(Source(plan, spec.launch.secrets, facts.code))
        return plan

    def _look(self, spec: JobSpec) -> Facts:
        from launcher.ssh.probe_client import looked_at, probe

        if self._facts is None:
            return probe([spec])
        key = looked_at(spec)
        if key not in self._facts:
            self._facts[key] = probe([spec])
        return self._facts[key]

    def _spec(self, words: Sequence[str]) -> JobSpec:
        from launcher.config import request, script_word

        given = dict(self.parameters)
        if given.get("cpus_per_task"):  # a node's, for the launcher
            given["cpus_per_task"] *= given.get("tasks_per_node", 1)
        own = [self.PARAMETERS[name](value) for name, value in given.items()]
        script = list(words[:1]) if words and script_word.is_script(words[0]) else []
        all_words = [*script, *self._words, *own, *words[len(script) :]]
        specs = request.to_specs(request.compose(request.split_flags(all_words, starts=True)))
        if len(specs) != 1:
            raise UsageError(f"{' '.join(words)}: these are {len(specs)} jobs; make a plan of each")
        return specs[0]

    def knows(self, source: Source) -> None:
        """Remember what a plan's submission takes from this machine."""
        code = source.code
        if self._code.get(code.digest) != code:
            self._code[code.digest] = code
        self._sources[id(source.plan)] = source._replace(code=self._code[code.digest])

    def _internal_process_submissions(self, delayed_submissions: Sequence[DelayedSubmission]) -> list[core.Job[Any]]:
        calls = [call for call in delayed_submissions if call.function is not execute]
        if calls and len(calls) == len(delayed_submissions):
            return self._submit_functions(calls)
        if calls:
            raise UsageError("a batch has either plans or functions; submit those of each in a batch of its own")
        # submitit's own executors pickle `execute` with its plan, and a Python in the job calls it. Ours start its
        # script, so that the job needs neither this package nor a Python of its version.
        plans = [self._plan_of(delayed) for delayed in delayed_submissions]
        return [self.job_class(folder) for folder in self._submit(plans)]

    def _submit_functions(self, calls: Sequence[DelayedSubmission]) -> list[core.Job[Any]]:
        from launcher.executors import functions

        made = {}
        with of_program():
            words = [functions.words(call.function, self._words) for call in calls]
            for distinct in dict.fromkeys(words):
                spec = self._spec(distinct)
                made[distinct] = (spec, *functions.planned(spec))
        bound = [functions.bound(made[each][1], call) for each, call in zip(words, calls, strict=True)]
        plans, pickles = zip(*bound, strict=True)
        for each, plan in zip(words, plans, strict=True):
            spec, _, facts = made[each]
            self.knows(Source(plan, spec.launch.secrets, facts.code))
        populate = [functools.partial(functions.write_call, pickle) for pickle in pickles]
        return [functions.FunctionJob(folder) for folder in self._submit(plans, populate)]

    def _plan_of(self, delayed: DelayedSubmission) -> Plan:
        if len(delayed.args) != 1 or delayed.kwargs:
            raise TypeError("execute takes a plan, and nothing else: submit(execute, plan)")
        (plan,) = delayed.args
        if not isinstance(plan, Plan):
            raise TypeError(f"execute takes a launcher.plan.model.Plan, not {type(plan).__name__}")
        if plan.run_id != PLACEHOLDER:
            raise UsageError(f"{plan.run_id} has a run folder already; `resume {plan.run_id}` starts it again")
        if plan.cluster["kind"] != self.kind:
            raise UsageError(f"this plan is for cluster={plan.cluster['kind']}, and the executor for {self.kind}")
        return plan

    def _submit(self, plans: Sequence[Plan], populate: Sequence[Callable[[Path], None]] = ()) -> list[Path]:
        """Submit new plans, as one sweep where there are several; see `submission.submit_to_cluster`."""
        sources = [self._sources.get(id(plan)) for plan in plans]
        follower.check_tracker(plans[0].tracker)
        folders = submission.submit_to_cluster(plans, sources, populate)
        follower.start(folders, plans[0].tracker)
        return folders

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {name.removeprefix(f"{cls.kind}_") for name in cls.PARAMETERS}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in self.PARAMETERS:
                here = type(self).__name__
                instead = f"other settings are words, as in {here}(folder, words=['telemetry.every=0'])"
                raise ValueError(
                    f"{name} is not a parameter of {here} ({', '.join(sorted(self.PARAMETERS))}); {instead}"
                )
        self.parameters.update(kwargs)


def submit(plans: Sequence[Plan], specs: Sequence[JobSpec], facts: Facts) -> list[Path]:
    """Submit plans of these jobs, by these facts, as one batch by the executor for their cluster. Returns their folders
    here. Raises `LauncherError`."""
    executor: PlanExecutor = getattr(launcher, EXECUTORS[plans[0].cluster["kind"]])()
    for plan, spec in zip(plans, specs, strict=False):  # a comparison is one plan of several jobs
        executor.knows(Source(plan, spec.launch.secrets, facts.code))
    with executor.batch():
        jobs: list[Any] = [executor.submit(execute, plan) for plan in plans]
    return [job.run_dir for job in jobs]
