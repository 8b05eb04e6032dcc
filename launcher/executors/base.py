"""The seam: whatever is submitted goes through `executor.submit(execute, plan)` of an executor for the plan's cluster.

A job's payload is the plan's script, not a pickle, so the job does not need this package.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from submitit.core import core
from submitit.core.utils import DelayedSubmission

from launcher.code.snapshot import Code
from launcher.config.spec import JobSpec
from launcher.errors import TYPED, LauncherError, UsageError
from launcher.executors import submission
from launcher.executors.execute import execute, provenance
from launcher.executors.job import RunJob
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.probe.facts import Facts
from launcher.runs import address

EXECUTORS = {
    "local": "launcher.executors.local.executor:LocalExecutor",
    "slurm": "launcher.executors.slurm.executor:SlurmExecutor",
    "ssh": "launcher.executors.ssh.executor:SshExecutor",
}
"""The kind of a plan's cluster -> the executor that runs it."""

Parameters = Mapping[str, Callable[[Any], str]]
"""submitit's names of parameters -> the setting that means the same."""


class Source(NamedTuple):
    """What the submission of a plan takes from this machine in addition to the plan."""

    plan: Plan
    spec: JobSpec
    code: Code


class PlanExecutor(core.Executor):
    """What our executors share: they take `execute` and plans of one kind of cluster.

    `folder` is the run root of the plans that it makes; `words` are further settings of them, as the command line takes
    them (`"python=/opt/env/bin/python"`).
    """

    job_class = RunJob
    kind: ClassVar[str]
    PARAMETERS: ClassVar[Parameters] = {
        "name": "name={}".format,
        "gpus_per_node": "gpus={}".format,
        "timeout_min": "cluster.time={}".format,
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

        try:
            spec = self._spec(words)
            facts = self._look(spec)
            plan = resolve(spec, facts)
        except LauncherError as error:
            raise type(error)(str(error).replace(TYPED, "")) from None
        self.knows(Source(plan, spec, facts.code))
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

        own = [self.PARAMETERS[name](value) for name, value in self.parameters.items()]
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
        # submitit would pickle `execute` and call it in the job, as its own executors do. Here the plan's script is the
        # job: whoever starts it, `submission` does.
        plans = [self._plan_of(delayed) for delayed in delayed_submissions]
        return [self.job_class(folder) for folder in self._submit(plans)]

    def _submit_functions(self, calls: Sequence[DelayedSubmission]) -> list[core.Job[Any]]:
        from launcher.executors import functions

        spec = self._spec(functions.WORDS)
        plan, facts = functions.planned(spec)
        plans, pickles = zip(*[functions.bound(plan, call) for call in calls], strict=True)
        for bound in plans:
            self.knows(Source(bound, spec, facts.code))
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
        """Lay down and start new plans, as one sweep where there are several; `populate` is for each plan what puts
        files into its folder. Returns their folders here."""
        addresses = [address.of(types.SimpleNamespace(**plan.cluster)) for plan in plans]
        for name, values in (
            ("run_root", [plan.run_root for plan in plans]),
            ("after", [plan.after for plan in plans if plan.job is None]),
            ("where the cluster is", addresses),
        ):
            if any(value != values[0] for value in values):
                raise UsageError(f"the plans of a batch differ in {name}; submit those of each in a batch of its own")
        sources = {id(plan): self._sources[id(plan)] for plan in plans if id(plan) in self._sources}
        first = next(iter(sources.values()), None)
        came_from = provenance(plans[0], first.code if first else None)
        code = {source.plan.code: source.code.paths for source in sources.values()}
        if addresses[0] is None:
            return submission.submit(plans, came_from, code=code, populate=populate)
        from launcher.executors.ssh import submit_client

        secrets = [sources[id(plan)].spec.launch.secrets if id(plan) in sources else {} for plan in plans]
        return submit_client.submit(plans, came_from, code, addresses[0], secrets)

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


def submit(plans: Sequence[Plan], specs: Sequence[JobSpec] = (), facts: Facts | None = None) -> list[Path]:
    """Submit plans as one batch by the executor for their cluster. Returns their folders here.

    `specs` and `facts` are where new plans come from: the jobs and their host's facts. Raises `LauncherError`.
    """
    module, _, name = EXECUTORS[plans[0].cluster["kind"]].partition(":")
    executor: PlanExecutor = getattr(importlib.import_module(module), name)()
    if facts is not None:
        for plan, spec in zip(plans, specs, strict=False):  # a comparison is one plan of several jobs
            executor.knows(Source(plan, spec, facts.code))
    with executor.batch():
        jobs: list[Any] = [executor.submit(execute, plan) for plan in plans]
    return [job.run_dir for job in jobs]
