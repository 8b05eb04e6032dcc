"""What a framework does around a user's own script: the part of `recipes.trainer.script` that each has its own of."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recipes.arguments import Arguments
from recipes.precision.resolved import ResolvedPrecision
from recipes.script import Source
from recipes.trainer.profiling import Profiling


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """What the wrapper was started with."""

    chosen: Arguments
    file: Path
    """Absolute."""
    workdir: Path
    arguments: tuple[str, ...]
    source: Source


class Observer(Protocol):
    """What looks on while a script trains."""

    precision: Any
    """What the reports say was asked for. The script's own, once it has made one."""
    reports: list[dict[str, Any]]


class Wrapper(ABC):
    """What a framework does around a script: its precision, where it can be applied there, and its observation."""

    mode: ResolvedPrecision
    own: bool
    """The script applies its precision itself, by what was said or by its text."""
    precision: Any
    """The framework's `Precision` that the script is held against: the wrapper's, until the script makes its own."""
    observer: Observer
    profiling: Profiling | None = None
    """What is recorded of some steps, where the framework has that."""
    asked: bool = False
    """The script has called `Precision.from_env()`."""

    @abstractmethod
    def around(self) -> AbstractContextManager[None]:
        """The script runs inside of this."""

    @abstractmethod
    def give_way(self) -> None:
        """Take back what is applied around the script."""

    @contextlib.contextmanager
    def noticing(self, precision: type[Any]) -> Iterator[None]:
        """Whether the script asks for its precision, of this class: then nothing is applied around it any more."""
        original = precision.from_env

        def from_env(*args: Any, **kwargs: Any) -> Any:
            self.give_way()
            self.asked = True
            self.precision = self.observer.precision = original(*args, **kwargs)
            return self.precision

        precision.from_env = staticmethod(from_env)
        try:
            yield
        finally:
            precision.from_env = staticmethod(original)

    def reports(self) -> list[dict[str, Any]]:
        """The reports (`recipes.precision.observation`) of this rank, once the script has ended."""
        return self.observer.reports

    def mechanism(self) -> str:
        """What carried the level out, as far as it was seen."""
        if self.asked:
            resolved: ResolvedPrecision = self.precision.resolved
            return resolved.mechanism
        return "script" if self.own else self.mode.mechanism

    @abstractmethod
    def steps(self) -> int | None:
        """Optimizer steps that were counted; None where nothing counts them."""

    def profile(self) -> dict[str, Any]:
        """What was profiled, as result.json has it."""
        return self.profiling.found if self.profiling else {}

    @abstractmethod
    def peak_memory(self) -> int: ...

    @abstractmethod
    def versions(self) -> dict[str, str | None]: ...

    @abstractmethod
    def hardware(self) -> dict[str, str | None]: ...
