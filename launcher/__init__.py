"""One command that launches a training job in the precision mode you name, and proves that the mode ran.

from launcher import launch

runs = launch("amp=o1,o2", "batch=128")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.errors import LauncherError as LauncherError
    from launcher.executors.execute import execute as execute
    from launcher.executors.local.executor import LocalExecutor as LocalExecutor
    from launcher.executors.slurm.executor import SlurmExecutor as SlurmExecutor
    from launcher.executors.ssh.executor import SshExecutor as SshExecutor
    from launcher.notebook.launch import find as find
    from launcher.notebook.launch import launch as launch

__version__ = "0.2.0"

_HOMES = {
    "LauncherError": "errors",
    "LocalExecutor": "executors.local.executor",
    "SlurmExecutor": "executors.slurm.executor",
    "SshExecutor": "executors.ssh.executor",
    "execute": "executors.execute",
    "find": "notebook.launch",
    "launch": "notebook.launch",
}
"""What a program imports from here -> the module that has it, loaded when it is asked for: the command line imports
this package too, and loads none of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
