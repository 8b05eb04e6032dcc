"""What an optimizer's own `state_dict` needs to resume mixed precision bit for bit.

A parameter's state has its float32 master as `master`. An optimizer initializes a state that is empty, as each
is before the first step and plain SGD's always is. So such a master is in its group's `masters`, by its position there.
The first group has the loss scale as `precision`. These are places that schedulers, `add_param_group` and
`torch.distributed.checkpoint` leave as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from amp_launcher.torch.precision.optimizer_weights import HALF, in_dtype_of, in_float32

MASTER, MASTERS, PRECISION = "master", "masters", "precision"


class SavesState(Protocol):
    """A precision, as the hooks of an optimizer see it."""

    steps_float32: bool
    """Whether half-precision parameters are stepped in float32, which their state is in too."""

    def saved(self, optimizer: Optimizer) -> Mapping[str, Any]:
        """What is saved with an optimizer beside its state: numbers and names alone; empty where there is nothing."""

    def load_saved(self, optimizer: Optimizer, saved: Mapping[str, Any] | None) -> None:
        """Follow what an optimizer has loaded."""

    def unstepped_masters(self, optimizer: Optimizer) -> Mapping[int, Mapping[str, torch.Tensor]]:
        """The masters that its state doesn't have, by group and position."""


class SavedState:
    """The hooks of one optimizer. Its copies and pickles have none."""

    def __init__(self, optimizer: Optimizer, precision: SavesState) -> None:
        self._precision = precision
        self._entries: dict[int, Any] = {}
        self._masters: list[Mapping[str, torch.Tensor]] = []
        """What is being loaded, by position: torch casts the state of a half-precision parameter to its dtype."""
        for group in optimizer.param_groups:  # what it loaded before
            _to_state(optimizer, group, group.pop(MASTERS, {}))
        if not precision.steps_float32:  # before the cast, in float32
            for parameter, entry in list(optimizer.state.items()):
                self._follow_dtype(optimizer, parameter, entry)
        precision.load_saved(optimizer, optimizer.param_groups[0].get(PRECISION))
        self.before_saving(optimizer)
        optimizer.register_state_dict_pre_hook(self.before_saving)
        optimizer.register_state_dict_post_hook(self.after_saving)
        optimizer.register_load_state_dict_pre_hook(self.before_loading)
        optimizer.register_load_state_dict_post_hook(self.after_loading)

    def before_saving(self, optimizer: Optimizer) -> None:
        if saved := self._precision.saved(optimizer):
            optimizer.param_groups[0][PRECISION] = dict(saved)
        else:
            optimizer.param_groups[0].pop(PRECISION, None)

    def after_saving(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        for key, entry in state["state"].items():
            if isinstance(entry, dict):
                state["state"][key] = dict(entry)  # a step takes the master out of the optimizer's own
        for number, masters in self._precision.unstepped_masters(optimizer).items():
            state["param_groups"][number][MASTERS] = dict(masters)

    def before_loading(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        groups = [dict(group) for group in state["param_groups"]]
        self._masters = [group.pop(MASTERS, {}) for group in groups]
        order = [key for group in groups for key in group["params"]]
        self._entries = {position: state["state"][key] for position, key in enumerate(order) if key in state["state"]}
        return {**state, "param_groups": groups}

    def after_loading(self, optimizer: Optimizer) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for position, saved in self._entries.items():
            self._follow_dtype(optimizer, own[position], saved)
        for number, masters in enumerate(self._masters):
            _to_state(optimizer, optimizer.param_groups[number], masters)
        self._entries, self._masters = {}, []
        self._precision.load_saved(optimizer, optimizer.param_groups[0].get(PRECISION))

    def _follow_dtype(self, optimizer: Optimizer, parameter: Any, saved: Any) -> None:
        if not isinstance(parameter, torch.Tensor) or parameter.dtype not in HALF:
            return
        loaded = optimizer.state[parameter]
        if self._precision.steps_float32:
            optimizer.state[parameter] = in_float32(loaded, saved)
        else:
            optimizer.state[parameter] = in_dtype_of(parameter, loaded, saved)


def stepped_entries(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> list[Mapping[str, Any]]:
    """The states of these parameters where the optimizer has stepped, or loaded a state of one that has."""
    entries = [entry for parameter in parameters if (entry := optimizer.state.get(parameter))]
    return entries if any(float(entry.get("step", 1)) for entry in entries) else []


def refuse_without_scale(optimizer: Optimizer) -> None:
    """Where a plain optimizer loaded what was saved with a loss scale by `torch.distributed.checkpoint`, which reads
    only what it finds in the state that it loads into. A state that never had a scale looks the same."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    if PRECISION not in optimizer.param_groups[0] and stepped_entries(optimizer, parameters):
        raise RuntimeError(
            "the optimizer has a state without a loss scale, as torch.distributed.checkpoint leaves it where it loads "
            "before precision.prepare: load it after model, optimizer = precision.prepare(model, optimizer)"
        )


def _to_state(optimizer: Optimizer, group: Mapping[str, Any], masters: Mapping[str, torch.Tensor]) -> None:
    for position, master in masters.items():
        optimizer.state[group["params"][int(position)]][MASTER] = master
