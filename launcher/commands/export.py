"""`export`: write the weights of a run as one safetensors file, by a Python that has torch. `to=` is in `export_to`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import amp_launcher
from launcher.commands.arguments import Parser, single, split
from launcher.config.paths import expanded
from launcher.errors import UsageError
from launcher.probe import pythons
from launcher.runs import ownership, run_roots, store
from launcher.runs.store import Run

_START = """\
import sys
sys.path[:] = filter(None, sys.path)
import runpy, signal, types
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
own = sys.modules["amp_launcher"] = types.ModuleType("amp_launcher")
own.__path__ = [sys.argv.pop(1)]
runpy.run_module("amp_launcher.torch.export", run_name="__main__", alter_sys=True)
"""
"""Runs torch/export.py of a folder `amp_launcher`, without the packages beside it or the current folder. Until that
module handles Ctrl-C, Ctrl-C ends the process without a traceback."""
OWN = ("step", "python", "overwrite")


def main(arguments: list[str]) -> int:
    parser = Parser(
        "export",
        "RUN [FILE] [step=N] [overwrite=true] [python=PATH], or RUN|SWEEP to=TRACKER [dir=PATH] [--follow]",
        "Write the weights of a torch run as one float32 safetensors file: every parameter by its name, masters where "
        "there are any, of the newest checkpoint or that of step N. FILE is RUN-step-N.safetensors or "
        "RUN.safetensors in this folder unless named; one that is there is replaced with overwrite=true alone. It is "
        "read by the run's own Python where that is here, else by this one, or by python=PATH, which needs torch and "
        "safetensors (pip install 'amp-launcher[export]'). Say `fetch` first for a run on another host. "
        "With to=tensorboard, mlflow or wandb the curves, settings, tags and verdict of runs, wherever they are, go "
        "there (dir=PATH for files), each once however often it is said; the tracker's own variables, as "
        "MLFLOW_TRACKING_URI, say where and with which key.",
    )
    parser.add_argument("--follow", action="store_true", help="with to=: continue until the runs have ended")
    options = parser.parse_intermixed_args(arguments)
    words = options.words
    if any(word.startswith("to=") for word in words):
        from launcher.commands import export_to

        return export_to.main(words, follow=options.follow)
    if options.follow:
        raise UsageError("--follow goes with to=tensorboard, to=mlflow or to=wandb")
    names, roots, own = split(words, OWN)
    if own.get("python") == "":
        raise UsageError("python= names no Python; say python=PATH, or leave it out")
    of_run = 2 if len(names) > 1 and names[1].isdecimal() else 1  # as SWEEP 002
    if not 1 <= len(names) <= of_run + 1:
        raise UsageError("export takes one run and one file: python -m launcher export RUN [FILE] [step=N]")
    run = single("export", names[:of_run], roots)
    ownership.refuse_other_users("export", [run])
    plan = store.read_or_empty(store.plan_path(run.folder), own_in=run.root)
    _check(run, plan)
    step = f"-step-{own['step']}" if "step" in own else ""
    file = expanded(names[of_run] if len(names) > of_run else f"{run.id}{step}.safetensors").absolute()
    given = [f"{key}={own[key]}" for key in ("step", "overwrite") if key in own]
    folder = os.path.abspath(amp_launcher.__path__[0])
    _become([_python(run, plan, own.get("python")), "-c", _START, folder, f"run={run.folder}", f"file={file}", *given])


def _become(command: list[str]) -> NoReturn:
    """Go on as the command, which then gets all signals itself. Raises `UsageError`."""
    sys.stderr.flush()
    # A Ctrl-C waits until the export unblocks it; a shell script around a Python clears the mask, and ignores it then.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(f"{command[0]} can't be started: {error.strerror}; say python=PATH") from None
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _check(run: Run, plan: Mapping[str, Any]) -> None:
    """Refuse what can't be exported, before torch is imported for it. Raises `UsageError`."""
    if plan.get("script"):
        raise UsageError(f"{run.id} is a script of your own, which saves its weights as it likes; nothing to export")
    if plan.get("arms"):
        raise UsageError(f"{run.id} is a comparison, whose arms are not exported; run the arm that you want by itself")
    if plan.get("framework", "torch") != "torch":
        raise UsageError(f"{run.id} is framework={plan['framework']}, and export is for torch")
    if run_roots.is_remote(run.root) and not (run.folder / "checkpoints").is_dir():
        raise UsageError(f"the checkpoints of {run.id} are on its host; say `python -m launcher fetch {run.id}` first")


def _python(run: Run, plan: Mapping[str, Any], named: str | None) -> str:
    """The Python that has torch: the run's own, if it is on this machine."""
    own = plan.get("python")
    is_here = not plan.get("container") and not run_roots.is_remote(run.root)
    if named is None and is_here and isinstance(own, str) and os.access(own, os.X_OK):
        return own
    return pythons.resolve(named)
