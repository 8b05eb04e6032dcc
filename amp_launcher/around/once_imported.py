"""Calls back once a script has imported a module, which may be never, and hides what was imported before it."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def once_imported(name: str, callback: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `callback` with the module of this name when it has been imported, at once if it already is."""
    if name in sys.modules:
        callback(sys.modules[name])
        yield
        return
    with _first(_Finder(name, callback)):
        yield


class _Finder(MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback
        self._looking = False

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        # Of this loader alone: its class loads other modules too, and a loader of our own would hide what it offers.
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute  # type: ignore[method-assign]
            self.remove()
            execute(module)
            self._callback(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def hidden(name: str, callback: Callable[[ModuleType], None]) -> Iterator[None]:
    """Leave an imported package out of `sys.modules` until a script imports it, as in plain Python, and call `callback`
    with it then."""
    with _first(_Hidden(name, callback)):
        yield


@contextlib.contextmanager
def _first(finder: _Finder | _Hidden) -> Iterator[None]:
    """Have modules looked for by this finder before all others."""
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _Hidden(MetaPathFinder, Loader):
    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback
        self._modules = {key: sys.modules.pop(key) for key in list(sys.modules) if f"{key}.".startswith(f"{name}.")}
        spec = self._modules[name].__spec__
        assert spec is not None
        self._spec = spec

    def remove(self) -> None:
        """Show the package again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self._modules)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = copy.copy(self._spec)
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[self._name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has set its own
        self.remove()
        self._callback(module)
