"""The calls of `Precision` before 0.2, each answered with what took its place."""

from __future__ import annotations

from typing import Any


class _Gone:
    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"Precision.{self._name} is gone: write {self._instead}")


class OlderNames:
    from_env = _Gone('precision = Precision("o2"); the launcher\'s request wins where there is one')
    of = _Gone('precision = Precision("o2", loss_scale="auto", device=device)')
    apply = _Gone('precision = Precision("o2", device=device)')
    cast = _Gone("model = precision.prepare(model)")
    optimizer = _Gone("model, optimizer = precision.prepare(model, optimizer)")
    forward = _Gone("`with precision:`")
    input = _Gone("model(inputs): a prepared model casts what it takes")
    output = _Gone("model(inputs): what a prepared model gives is float32")
    update = _Gone("nothing: precision.step(optimizer) does it")
