"""The calls of `Precision` in earlier releases, each answered with what took its place."""

from __future__ import annotations

from typing import Any


class Gone:
    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"Precision.{self._name} is gone: write {self._instead}")


class OlderNames:
    from_env = Gone('precision = Precision("o2"); the launcher\'s request wins where there is one')
    of = Gone('precision = Precision("o2", loss_scale="auto", device=device)')
    apply = Gone('precision = Precision("o2", device=device)')
    cast = Gone("model = precision.prepare(model); in TensorFlow of the function that makes it")
    optimizer = Gone("model, optimizer = precision.prepare(model, optimizer)")
    forward = Gone("`with precision:`")
    input = Gone("model(inputs): a prepared model casts what it takes")
    output = Gone("model(inputs): what a prepared model gives is float32")
    update = Gone("nothing: precision.step(optimizer) does it")
