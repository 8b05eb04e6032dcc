"""Any Python function as a run: `executor.submit(train, lr=0.1)`, here or on a shared file system.

The function becomes a plan like others, whose command loads it: see `amp_launcher.job.function`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from submitit.core.utils import DelayedSubmission

import amp_launcher
from amp_launcher.job import function
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, UsageError
from launcher.executors.job import RunJob
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts, Script
from launcher.probe.host import look
from launcher.probe.inputs import with_inputs
from launcher.probe.questions import questions
from launcher.runs import ownership, store
from launcher.runs.schema import PlanRecord

SCRIPT = str(Path(amp_launcher.__path__[0], "job", "function.py").absolute())
WORDS = ("recipe=script", f"script={SCRIPT}", "train.bare=true", "train.precision=script", "require_proof=false")
"""The job of any function."""
_ASK = "import sys, cloudpickle; print('%d.%d' % sys.version_info[:2])"


class FunctionJob(RunJob):
    """A function that runs, or ran. Its result is what the function returned."""

    def submission(self) -> DelayedSubmission:
        script = store.read(PlanRecord, self.run_dir / "plan.json", ("script",)).script
        digest = script.arguments[-1] if script and script.arguments else ""
        content = self._own(functools.partial(function.read_call, str(self.run_dir), digest))
        _, call = cloudpickle.loads(content)
        called, arguments, named = cloudpickle.loads(call)
        return DelayedSubmission(called, *arguments, **named)

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        ended, reason = super()._get_outcome_and_result()
        if not (self.run_dir / function.RESULT).exists():  # killed, or ended by sys.exit() or os._exit()
            why = f"the process ended first, as by sys.exit() (logs in {self.run_dir}/attempts)"
            done = f"run {self.run_id} is done, but its function did not return: {why}"
            return "error", done if ended == "success" else reason
        outcome, value = cloudpickle.loads(
            self._own(functools.partial(function.read_own, str(self.run_dir / function.RESULT)))
        )
        if outcome == "success":  # an attempt that was killed afterwards has no result
            return ("success", value) if ended == "success" else ("error", reason)
        return "error", f"{str(value).rstrip()}\nrun {self.run_id} failed (logs in {self.run_dir}/attempts)"

    def _own(self, read: Callable[[], bytes]) -> bytes:
        if not ownership.is_mine(self.run_dir, str(self.run_dir.parent)):
            raise LauncherError(f"{self.run_id} is another user's run, so nothing of it is unpickled")
        try:
            return read()
        except OSError as error:
            raise LauncherError(f"{self.run_id}: {error}") from None


def planned(spec: JobSpec) -> tuple[Plan, Facts]:
    """The plan of a function, yet without the function: see `bound`. Raises `LauncherError`."""
    if spec.launch.cluster.kind == "ssh" or getattr(spec.launch.cluster, "login", None):
        raise UsageError("a function runs on this machine, or on a Slurm cluster that shares its files; submit a plan")
    if spec.launch.container.kind != "none":
        raise UsageError("a function needs the Python that it was written for, so it runs in no container (container=)")
    facts = with_inputs(look(questions([spec])), ())
    facts = dataclasses.replace(
        facts,
        scripts={SCRIPT: Script(path=SCRIPT, name="amp_launcher/job/function.py", root=str(Path(SCRIPT).parent))},
        packages={spec.training.framework: "", **facts.packages},  # whether it uses one is its own affair
    )
    plan = dataclasses.replace(resolve(spec, facts), processes=1, words=(), name=spec.launch.name or "")
    if plan.nodes > 1:
        raise UsageError(f"nodes={plan.nodes}: a function runs in one process; submit a plan of a script")
    _check_python(plan.python)
    return plan, facts


def _check_python(python: str) -> None:
    """Refuse a Python that could not load what this one pickles. Raises `UsageError`."""
    if python == sys.executable:
        return
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, cwd="/")
        answer = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = str(error)
    if answer != own:
        raise UsageError(
            f"python={python}: a function needs Python {own}, as here, and cloudpickle where it runs; this one says "
            f"{answer!r}"
        )


def bound(plan: Plan, call: DelayedSubmission) -> tuple[Plan, bytes]:
    """The plan of this call, and what its run folder holds: the call as a pickle.

    Raises `TypeError` for what can't be called, `UsageError` for what can't be pickled.
    """
    if not callable(call.function):
        kind = type(call.function).__name__
        instead = "submit(execute, plan)" if isinstance(call.function, Plan) else "submit(function, *arguments)"
        raise TypeError(f"submit takes a function and its arguments, not a value of type {kind}: say {instead}")
    try:
        pickled = cloudpickle.dumps((call.function, call.args, call.kwargs))
    except Exception as error:  # pickling runs whatever code the values bring
        raise UsageError(f"{_name(call)} can't be pickled: {type(error).__name__}: {error}") from None
    content: bytes = cloudpickle.dumps((_module_folders(), pickled))
    assert plan.script is not None
    script = dataclasses.replace(plan.script, arguments=(_name(call), hashlib.sha256(content).hexdigest()))
    swept = getattr(call.function, "swept", ())  # what it says that it differs in from others of its batch
    return dataclasses.replace(plan, name=plan.name or _name(call), script=script, swept=swept), content


def _module_folders() -> list[str]:
    """Where this process finds modules, without what every process of this Python has."""
    paths = sysconfig.get_paths()
    own = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    entries = map(os.path.abspath, sys.path)
    return list(dict.fromkeys(entry for entry in entries if entry not in own and os.path.isdir(entry)))


def write_call(content: bytes, folder: Path) -> None:
    """Put the pickle of a call into the folder of its run."""
    function.write_own(str(folder / function.CALL), content)


def _name(call: DelayedSubmission) -> str:
    """The function's name, as part of a run's name."""
    name = getattr(call.function, "__name__", type(call.function).__name__)
    return re.sub(r"[^\w.+-]", "-", name)[:40]
