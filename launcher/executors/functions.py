"""Any Python function as a run: `executor.submit(train, lr=0.1)`, here or on a shared file system.

The function becomes a plan like others, whose command loads it: see `amp_launcher.job.function`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import pickle
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from submitit.core.utils import DelayedSubmission, FailedJobError

from amp_launcher import records
from amp_launcher.around import script_source
from amp_launcher.job import function
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, UsageError
from launcher.executors.job import RunJob
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts, Script
from launcher.probe.host import facts_of
from launcher.probe.inputs import with_inputs
from launcher.probe.questions import questions
from launcher.runs import ownership, store
from launcher.runs.schema import PlanRecord

_ALONE = ("train.bare=true", "train.precision=script", "require_proof=false")
"""Settings of a function that runs without the wrapper of scripts."""
_OF_PYTHON = ("site-packages", "dist-packages", "lib-dynload")
"""Folders of modules that an image's own Python has of its own."""
_ASK = "import sys, cloudpickle; print('%d.%d' % sys.version_info[:2])"


class FunctionJob(RunJob):
    """A function that runs, or ran. Its result is what the function returned; of one in several processes `results()`
    has that of each by its number, and `task(N)` is the job of one."""

    def __init__(self, folder: str | Path, job_id: str = "", tasks: Sequence[int] = ()) -> None:
        plan = store.read(PlanRecord, Path(folder).expanduser() / "plan.json", ("nodes", "processes"))
        super().__init__(folder, job_id, tasks or range((plan.nodes or 1) * (plan.processes or 1)))

    def submission(self) -> DelayedSubmission:
        script = store.read(PlanRecord, self.run_dir / "plan.json", ("script",)).script
        digest = script.arguments[-1] if script and script.arguments else ""
        content = self._own(functools.partial(function.read_call, str(self.run_dir), digest))
        _, _, call = pickle.loads(content)
        called, arguments, named = cloudpickle.loads(call)
        return DelayedSubmission(called, *arguments, **named)

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        ended, reason = super()._get_outcome_and_result()
        file = self.run_dir / function.result_file(self.task_id or 0)
        if not file.exists():  # killed, or ended by sys.exit() or os._exit()
            why = f"the process ended first, as by sys.exit() (logs in {self.run_dir}/attempts)"
            done = f"run {self.run_id} is done, but its function did not return: {why}"
            return "error", done if ended == "success" else reason
        outcome, value = cloudpickle.loads(self._own(functools.partial(function.read_own, str(file))))
        if outcome == "success":  # an attempt that was killed afterwards has no result
            return ("success", value) if ended == "success" else ("error", reason)
        return "error", f"{str(value).rstrip()}\nrun {self.run_id} failed (logs in {self.run_dir}/attempts)"

    def exception(self) -> FailedJobError | None:
        if not self._sub_jobs:
            return super().exception()
        errors: list[Any] = [error for job in self._sub_jobs if (error := job.exception())]
        # The others, which that task's failure has ended, have the run's reason alone, without the traceback.
        return max(errors, key=lambda error: len(str(error)), default=None)

    def results(self) -> list[Any]:
        if self._sub_jobs and (error := self.exception()):
            raise error
        return super().results()

    def stdout(self) -> str | None:
        return self._get_logs_string("stdout")  # of all tasks, in one file

    def stderr(self) -> str | None:
        return self._get_logs_string("stderr")

    def _own(self, read: Callable[[], bytes]) -> bytes:
        if not ownership.is_mine(self.run_dir, str(self.run_dir.parent)):
            raise LauncherError(f"{self.run_id} is another user's run, so nothing of it is unpickled")
        try:
            return read()
        except OSError as error:
            raise LauncherError(f"{self.run_id}: {error}") from None


def words(called: Any, given: Sequence[str]) -> tuple[str, ...]:
    """The settings of a function's job. Where the given ones name a mode, it is applied around the function as around
    a script; the text that shows a script's framework is then that of the file that defines the function."""
    around = any(re.match(r"\+*amp[.=]", word) for word in given)
    file = file_of(called) if around else function.__file__
    return ("recipe=script", f"script={file}", *(() if around else _ALONE))


def file_of(called: Any) -> str:
    """The file that defines a function; what calls another one says it as `defined_in`."""
    try:
        file = getattr(called, "defined_in", "") or inspect.getsourcefile(inspect.unwrap(called)) or ""
    except TypeError:
        file = ""  # built in, or an object
    return os.path.abspath(file) if os.path.isfile(file) else function.__file__


def planned(spec: JobSpec) -> tuple[Plan, Facts]:
    """The plan of a function, yet without the function: see `bound`. Raises `LauncherError`."""
    launch, file = spec.launch, spec.launch.script
    if launch.cluster.kind == "ssh" or getattr(launch.cluster, "login", None):
        raise UsageError("a function runs on this machine, or on a Slurm cluster that shares its files; submit a plan")
    if launch.container.kind != "none":
        spec = dataclasses.replace(spec, launch=dataclasses.replace(launch, mounts=(*launch.mounts, *_mounts())))
    assert file is not None
    source = script_source.Source() if file == function.__file__ else script_source.read(Path(file).read_bytes())
    facts = with_inputs(facts_of(questions([spec])), ())
    facts = dataclasses.replace(facts, scripts={file: Script(path=file, name=records.FUNCTION, source=source)})
    if spec.training.train.bare:  # whether it uses a framework is its own affair
        facts = dataclasses.replace(facts, packages={spec.training.framework: "", **facts.packages})
    modes = tuple(word for word in spec.words if word.startswith("amp") and not spec.training.train.bare)
    plan = dataclasses.replace(resolve(spec, facts), words=modes, name=launch.name or "")
    if plan.container is None:
        _check_python(plan.python)
    assert plan.script is not None
    return dataclasses.replace(plan, script=dataclasses.replace(plan.script, named=file)), facts


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
    """The plan of this call, and the call as a pickle. Raises `TypeError` for what can't be called, `UsageError` for
    what can't be pickled."""
    if not callable(call.function):
        kind = type(call.function).__name__
        instead = "submit(execute, plan)" if isinstance(call.function, Plan) else "submit(function, *arguments)"
        raise TypeError(f"submit takes a function and its arguments, not a value of type {kind}: say {instead}")
    try:
        pickled = cloudpickle.dumps((call.function, call.args, call.kwargs))
    except Exception as error:  # pickling runs whatever code the values bring
        raise UsageError(f"{_name(call)} can't be pickled: {type(error).__name__}: {error}") from None
    content: bytes = pickle.dumps((function.VERSION, _module_folders(), pickled), protocol=4)
    assert plan.script is not None
    script = dataclasses.replace(plan.script, arguments=(_name(call), hashlib.sha256(content).hexdigest()))
    if script.stop_signal == "TERM" and function.checkpoint_of(call.function):
        # submitit's own signal: TERM ends a task where another one has failed, which is nothing to save
        script = dataclasses.replace(script, stop_signal="USR2")
    swept = getattr(call.function, "swept", ())  # what it says that it differs in from others of its batch
    return dataclasses.replace(plan, name=plan.name or _name(call), script=script, swept=swept), content


def _module_folders() -> list[str]:
    """Where this process finds modules, without what every process of this Python has."""
    paths = sysconfig.get_paths()
    own = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    entries = map(os.path.abspath, sys.path)
    return list(dict.fromkeys(entry for entry in entries if entry not in own and os.path.isdir(entry)))


def _mounts() -> list[str]:
    """The same in a container: but for the folder that the job starts in, which it has, and those of this Python."""
    folders, here = _module_folders(), f"{os.getcwd()}/"
    own = [folder for folder in folders if not set(_OF_PYTHON) & {*Path(folder).parts}]
    outermost = [folder for folder in own if not any(folder.startswith(f"{other}/") for other in own)]
    return [f"{folder}:{folder}" for folder in outermost if not f"{folder}/".startswith(here)]


def write_call(content: bytes, folder: Path) -> None:
    function.write_own(str(folder / function.CALL), content)


def _name(call: DelayedSubmission) -> str:
    """The function's name, as part of a run's name."""
    name = getattr(call.function, "__name__", type(call.function).__name__)
    return re.sub(r"[^\w.+-]", "-", name)[:40]
