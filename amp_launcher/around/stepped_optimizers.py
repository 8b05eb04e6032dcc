"""The optimizers of a user's script, and the steps of each: a GAN has two, and some scripts one for each parameter."""

from __future__ import annotations

import weakref
from typing import Any


class SteppedOptimizers:
    """Counts steps by optimizer, and knows which stepped first: of it are a script's rows."""

    def __init__(self) -> None:
        self._by_id: dict[int, _Optimizer] = {}
        self._first: _Optimizer | None = None
        self.count = 1
        """Optimizers that stepped, or 1 before any has."""

    def stepped(self, optimizer: Any, count: int, name: str) -> bool:
        """Count steps of an optimizer; `name` is by default its type's. Returns whether it is the first."""
        first = self._first
        if first is not None and first.optimizer() is optimizer:  # as in nearly every step
            first.steps += count
            return True
        state = self._by_id.get(id(optimizer))
        if state is None or state.optimizer() is not optimizer:
            state = self._by_id[id(optimizer)] = _Optimizer(optimizer, name)
            if self._first is not None and self._first.optimizer() is not None:
                self.count += 1
        if self._first is None or self._first.optimizer() is None:
            self._first = state  # the previous one was deleted, as in cross-validation
        state.steps += count
        return state is self._first

    def steps_of(self, optimizer: Any) -> int:
        state = self._by_id.get(id(optimizer))
        return state.steps if state is not None and state.optimizer() is optimizer else 0

    def is_first(self, optimizer: Any) -> bool:
        return self._first is not None and self._first.optimizer() is optimizer

    @property
    def any(self) -> bool:
        """Whether one has stepped."""
        return self._first is not None

    @property
    def name(self) -> str:
        """Of the first, such as `AdamW, the first of 2 optimizers`."""
        assert self._first is not None
        return f"{self._first.name}{f', the first of {self.count} optimizers' if self.count > 1 else ''}"


class _Optimizer:
    """One optimizer that stepped."""

    __slots__ = ("name", "optimizer", "steps")

    def __init__(self, optimizer: Any, name: str) -> None:
        self.steps = 0
        self.name = name or type(optimizer).__name__
        self.optimizer = weakref.ref(optimizer)
