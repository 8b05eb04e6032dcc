"""A span of a script's optimizer steps that is observed, and the modules that become known by being called."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from torch import nn

from amp_launcher.around.schedule import SPAN
from amp_launcher.torch.observe.modules import Owner, names_of, optimizer_frames, weights_of
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.precision.base import Mechanism

Requested = Precision | Mechanism
"""What the script's own precision, or the launcher's around it, is asked for."""


class Span(PrecisionObserver):
    """Observes some optimizer steps, and modules as they become known by being called."""

    def __init__(
        self,
        module: nn.Module,
        precision: Requested,
        first: int,
        after_step: bool = False,
        *,
        compiles: bool = False,
    ) -> None:
        """`after_step` is of a span that begins where the previous step ends."""
        super().__init__(module, precision.resolved, precision.gemm_layers, compiles=compiles)
        self.first, self.last = first, first + SPAN - 1
        self.after_step = after_step
        self.by_hand = 0
        """Calls of modules after a backward, and after weights were written since, while no optimizer has stepped."""
        self._busy = 0
        """Operations until the newest backward or step ended."""
        self._steps = False
        self._own = nn.Module()
        self._weights: dict[nn.Parameter, Owner] = {}
        """Those of the optimizers, for code without modules and where modules compute with other weights."""
        self._shards: dict[nn.Parameter, Owner] = {}
        """Noted before forwards and after steps: a forward without a backward, as in an evaluation, leaves the
        parameters that `fully_shard` gathered in place of the shards that the optimizer steps."""
        self._as_stepped: list[dict[str, Any]] | None = None
        """The weights when the newest step ended: what a script makes of them when it has trained, such as half
        precision to save, is its own matter."""
        self._cast_names = precision.module_names()
        for cast, name in self._cast_names.items():
            own = name.rpartition("/")[2]
            for inner in cast.modules() if own in precision.kept else ():
                self._modules.keep(inner, [own])
        self._seen: set[int] = set()
        self.add(module)
        self._open = contextlib.ExitStack()
        self._open.enter_context(self.step(first, after_step=after_step, hooks=False))

    def close(self, trains: bool = False) -> None:
        """`trains` says that the next step begins, with the weights as they are now."""
        if trains:
            self._as_stepped = None
        self._open.close()

    def add(self, module: nn.Module) -> None:
        """Observe the modules inside this one too."""
        if id(module) in self._seen:
            return
        self._seen.update(id(inner) for inner in module.modules())
        names = self._modules.names
        for inner, name in names_of(module).items():
            # The called module may be a part of the model that was cast, or contain it.
            names[inner] = self._cast_names.get(inner, names.get(inner, name))
        self.note_shards()

    def called(self) -> None:
        """A module is called, perhaps because a step by hand has ended; an optimizer's closure is in its step."""
        if not self._steps and self._current is not None and not optimizer_frames():
            self.by_hand += self._current.stepped_by_hand()

    def operations(self) -> int:
        return self._current.mode.operations if self._current is not None else 0

    def idle(self) -> int:
        """Operations since the newest backward or step ended."""
        return self.operations() - self._busy

    @property
    def rests(self) -> bool:
        """Whether it observes nothing more."""
        return self._current is not None and self._current.mode.rests

    def rest(self) -> None:
        """Observe nothing more, in the same place in both observers."""
        if self._current is not None:
            self._current.rest()

    def backward_ended(self) -> None:
        self._busy = self.operations()

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps = True
        if self._current is not None and not self.rests:
            self._current.before_optimizer(optimizer, (), {})

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._weights.update((weight, Owner(self._own, "", False)) for weight in weights)
        self._as_stepped = super()._weight_groups()
        self._busy = self.operations()
        if self._current is not None and not self.rests:
            self._current.after_optimizer(optimizer, (), {})

    def note_shards(self) -> None:
        owners = self._modules.owners()
        self._shards.update((weight, owner) for weight, owner in owners.items() if hasattr(weight, "to_local"))

    def _weight_groups(self) -> list[dict[str, Any]]:
        return super()._weight_groups() if self._as_stepped is None else self._as_stepped

    def _owners(self) -> dict[nn.Parameter, Owner]:
        sharded = {owner.module for owner in self._shards.values()}
        whole = {weight: owner for weight, owner in super()._owners().items() if owner.module not in sharded}
        return {**whole, **self._shards} or self._weights


def modules_of(optimizer: torch.optim.Optimizer) -> list[nn.Module]:
    """The outermost modules that have a weight of the optimizer."""
    weights = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [
        module
        for module in modules
        if id(module) not in inner and any(id(weight) in weights for weight in weights_of(module))
    ]
