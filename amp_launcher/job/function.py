"""What runs a Python function as a job: `python job/function.py NAME SHA256`; LAUNCHER_SPEC names the run's plan.

The function and its arguments are in `function.pkl` of the run folder, after the version of the Python that submitted
it and the folders in which that finds modules; its result goes into `function-result.pkl`. One with a `checkpoint`
method, as submitit's `Checkpointable`, gives its next call when the run is asked to stop, which goes into
`function-saved.pkl` among the run's checkpoints. All are pickles, which can run anything when they are read: so each is
read only where it is the caller's own file that nobody else may write or read, and `function.pkl` only with the digest
that the plan names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import stat
import sys
import traceback
from typing import Any

CALL, RESULT, SAVED = "function.pkl", "function-result.pkl", "function-saved.pkl"
STOPPED = 85
"""The exit code of one that has saved its next call."""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""What a Python has to share with another one to load its functions."""


def read_own(path: str) -> bytes:
    """The content of a pickle. Raises `PermissionError` where anyone but the caller could have written it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise PermissionError(f"{path} is not a file of yours alone (mode 0600), so it is not loaded")
        return stream.read()


def read_call(run: str, digest: str) -> bytes:
    """The pickle of a run's call, which has that SHA-256. Raises `PermissionError` for any other."""
    content = read_own(f"{run}/{CALL}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise PermissionError(f"{run}/{CALL} is not what was submitted, so it is not loaded")
    return content


def write_own(path: str, content: bytes) -> None:
    """Write a pickle aside, for its owner alone, and rename it."""
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as stream:
        stream.write(content)
    os.replace(f"{path}.new", path)


def result_file(task: int) -> str:
    """The name in the run folder of what one of several tasks returned."""
    return f"function-result-{task}.pkl" if task else RESULT


def run_folder(plan: str) -> str:
    """The run folder of a plan: RUN/plan.json or, after a resume, RUN/attempts/N/plan.json."""
    folder = os.path.dirname(plan)
    under, number = os.path.split(folder)
    resumed = os.path.basename(under) == "attempts" and number.isdigit()
    return os.path.dirname(under) if resumed else folder


def outcome_of(name: str, content: bytes) -> tuple[bytes, str]:
    """The pickled outcome of a call, and why it failed: what it raised, or why its result can't be pickled."""
    version, folders, call = pickle.loads(content)
    sys.path += [folder for folder in folders if folder not in sys.path]
    if reason := unloadable(version):
        sys.stderr.write(f"{reason}\n")
        return pickle.dumps(("error", reason)), reason
    import cloudpickle

    try:
        with contextlib.suppress(FileNotFoundError):
            call = read_own(saved_file())
        function, arguments, named = cloudpickle.loads(call)
        save_when_asked(function, arguments, named)
        result = function(*arguments, **named)
    except Exception as error:  # whatever it raises is its outcome
        beyond_here = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, beyond_here))
        reason = f"{type(error).__name__}: {error}"
    else:
        try:
            return cloudpickle.dumps(("success", result)), ""
        except Exception as error:  # pickling runs whatever code the result brings
            kind, why = type(result).__name__, f"{type(error).__name__}: {error}"
            reason = f"{name} returned a value of type {kind}, which can't be pickled: {why}"
            text = f"{reason}\n"
    sys.stderr.write(text)
    return cloudpickle.dumps(("error", text)), reason


def checkpoint_of(function: Any) -> Any:
    """The method by which submitit asks a callable for its next call; None where it has none."""
    found = getattr(function, "__submitit_checkpoint__", None) or getattr(function, "checkpoint", None)
    return found if callable(found) else None


def saved_file() -> str:
    return f"{os.environ.get('LAUNCHER_CHECKPOINT_DIR', '')}/{SAVED}"


def save_when_asked(function: Any, arguments: Any, named: Any) -> None:
    """From now on the run's signal to stop has the function save its next call, and ends it. The first of several tasks
    does that for all."""
    import cloudpickle

    checkpoint = checkpoint_of(function)
    with open(os.environ["LAUNCHER_SPEC"], encoding="utf-8") as stream:
        name = json.load(stream)["script"]["stop_signal"]
    if checkpoint is None or name is None:
        return

    def save(number: int, frame: object) -> None:
        if task() == 0:
            if again := checkpoint(*arguments, **named):
                write_own(saved_file(), cloudpickle.dumps((again.function, again.args, again.kwargs)))
            raise SystemExit(STOPPED)

    signal.signal(getattr(signal, f"SIG{name}"), save)
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1:  # a preemption's, which comes before the run's own signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def unloadable(version: str) -> str:
    """Why this Python can't load a function that one of that version pickled; empty if it can."""
    other = "name another one by python= or image="
    if version != VERSION:
        return f"a function needs Python {version}, which submitted it, and {sys.executable} is {VERSION}; {other}"
    try:
        import cloudpickle  # noqa: F401
    except ModuleNotFoundError:
        return f"a function needs cloudpickle where it runs, and {sys.executable} has none; install it, or {other}"
    return ""


def leave_reason(run: str, reason: str) -> None:
    """Leave why this attempt failed for those who list the run, who unpickle nothing."""
    path = f"{run}/attempts/{os.environ.get('LAUNCHER_ATTEMPT')}/failed.json"
    own = f"{path}.{task()}"
    with contextlib.suppress(FileNotFoundError):  # run by hand, it is no attempt
        with open(own, "w", encoding="utf-8") as stream:
            json.dump({"schema": 1, "rank": task(), "reason": reason}, stream)
        with contextlib.suppress(FileExistsError):  # that of the task that failed first
            os.link(own, path)
        os.unlink(own)


def task() -> int:
    """The number of this process among the function's tasks; `job/tasks.py` starts several."""
    return int(os.environ.get("LAUNCHER_TASK", "0"))


def set_submitit_job(run: str) -> None:
    """Set what `submitit.JobEnvironment()` reads: Slurm's variables where there are any, as there are none in some
    containers; else those of a local job whose id is the run's."""
    folder, run_id = os.path.split(run)
    place = "slurm" if "SLURM_JOB_ID" in os.environ else "local"
    if "LAUNCHER_TASK" not in os.environ:  # the only task, as without these; a surrounding job's may be set
        for name in [name for name in os.environ if name.startswith("SUBMITIT_LOCAL_")]:
            del os.environ[name]
    os.environ.update(SUBMITIT_EXECUTOR=place, SUBMITIT_FOLDER=folder, SUBMITIT_LOCAL_JOB_ID=run_id)


def main(name: str, digest: str) -> int:
    """Call the function of this run. Returns the exit code."""
    # Modules are found from the folder that it starts in, as with `python -m`; never beside this file.
    sys.path[0] = os.getcwd()
    run = run_folder(os.environ["LAUNCHER_SPEC"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{run}/{result_file(task())}")  # an earlier attempt's, which must not pass for this one's
    set_submitit_job(run)
    try:
        pickled, reason = outcome_of(name, read_call(run, digest))
    except SystemExit as ended:
        if isinstance(ended.code, str):  # a number is the exit code, which the run's script reports
            leave_reason(run, f"SystemExit: {ended.code}")
        raise
    write_own(f"{run}/{result_file(task())}", pickled)
    if reason:
        leave_reason(run, reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
