"""An attribute of an earlier release, answered with what took its place."""

from __future__ import annotations

from typing import Any


class Gone:
    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"Precision.{self._name} is gone: write {self._instead}")
