"""Gives the libraries that a script trains by their callbacks, where each looks for some: Lightning at the entry points
of installed packages, transformers' Trainer in its list of default callbacks, Keras in each
`fit`. None is imported here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from amp_launcher.around import keras_callback
from amp_launcher.around.once_imported import once_imported
from amp_launcher.world.world import rank_and_size

_LOGGERS = ("lightning.fabric.utilities.registry", "lightning_fabric.utilities.registry")
"""Which tell of callbacks by entry points."""
_CALLBACK = "amp_launcher.torch.libraries.lightning_callback"
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: amp-launcher-run\nVersion: 0\n",
    "entry_points.txt": f"""\
[lightning.pytorch.callbacks_factory]
amp_launcher = {_CALLBACK}:lightning_callbacks

[pytorch_lightning.callbacks_factory]
amp_launcher = {_CALLBACK}:pytorch_lightning_callbacks
""",
}
"""Of a package that is installed only here."""


@contextlib.contextmanager
def attached() -> Iterator[None]:
    """The script runs in this context."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(keras_callback.attached(rank_and_size("torch")[1]))
        stack.enter_context(once_imported("transformers.trainer", _add_callback))
        for name in ("lightning", "pytorch_lightning"):
            stack.enter_context(once_imported(name, lambda module: _install(stack)))
        yield


def _add_callback(module: ModuleType) -> None:
    from amp_launcher.torch.libraries.trainer_callback import JobCallback

    module.DEFAULT_CALLBACKS.append(JobCallback)


def _remove(finder: Any) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def _install(stack: contextlib.ExitStack) -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        finder = _Finder()
        sys.meta_path.append(finder)
        stack.callback(_remove, finder)
        for logger in map(logging.getLogger, _LOGGERS):
            logger.addFilter(_is_not_ours)
            stack.callback(logger.removeFilter, _is_not_ours)


def _is_not_ours(record: logging.LogRecord) -> bool:
    """A script says the same words alone."""
    return "from entry point 'amp_launcher'" not in record.getMessage()


class _Finder(DistributionFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        return [_Package()] if getattr(context, "name", None) in (None, "amp-launcher-run") else []


class _Package(importlib.metadata.Distribution):
    def read_text(self, filename: Any) -> str | None:
        return METADATA.get(str(filename))

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"amp-launcher-run has no file {path}")
