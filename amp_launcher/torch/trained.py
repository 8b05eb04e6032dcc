"""Everything that training changes, and its state by the names of parameters: any number of ranks can resume from it,
sharded (parallel=fsdp) or each with the whole model (parallel=ddp).

    {"model": {name: value},                            parameters and persistent buffers, each once
     "tied": {name: name},                              further names of shared parameters -> the name above
     "optimizers": [{"state": {name: {key: value}},     with a float32 master as "master"
                     "rest": {key: value},              state of an optimizer that belongs to no parameter
                     "groups": [{"params": [name], key: value}]}],
     "precision": {...}}                                `Precision.state_dict`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amp_launcher.torch.precision import Precision
from amp_launcher.torch.precision.masters import differing
from amp_launcher.torch.precision.saved_state import MASTER, MASTERS, SavedState
from amp_launcher.world.world import SettingsErrorOfAll

EXTRA_STATE = "_extra_state"
"""The end of the name of what a module's `get_extra_state` gives (torch's documentation of `nn.Module`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The prepared model without wrappers, its optimizers, and the precision with its own state.

    Raises `SettingsError` for an optimizer whose `state_dict` is not torch's: what it adds would be lost.
    """

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision

    def __post_init__(self) -> None:
        for optimizer in self.optimizers:
            own = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
            hooks = (
                *optimizer._optimizer_state_dict_pre_hooks.values(),
                *optimizer._optimizer_state_dict_post_hooks.values(),
            )
            if own or not all(isinstance(getattr(hook, "__self__", None), SavedState) for hook in hooks):
                raise SettingsErrorOfAll(
                    f"{type(optimizer).__name__} has a state_dict or hooks of it of its own, and a checkpoint has the "
                    "state that torch's own saves: take another optimizer"
                )

    def state(self) -> dict[str, Any]:
        """The state as it is, without copies. Of a sharded model its tensors are sharded too.

        Raises `SettingsError` where an optimizer keeps state of tensors that it does not step.
        """
        own, tied = _by_name(self.model)
        optimizers = []
        for optimizer in self.optimizers:
            names = list(self.precision.parameter_names(optimizer).values())
            rest = _of_no_parameter(optimizer)
            whole = optimizer.state_dict()
            groups = [{**group, "params": [names[at] for at in group["params"]]} for group in whole["param_groups"]]
            state = {name: dict(whole["state"][at]) for at, name in enumerate(names) if at in whole["state"]}
            for group in groups:
                for at, master in group.pop(MASTERS, {}).items():
                    state[group["params"][int(at)]] = {MASTER: master}
            optimizers.append({"state": state, "rest": rest, "groups": groups})
        model = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in own.items()}
        return {"model": model, "tied": tied, "optimizers": optimizers, "precision": self.precision.state_dict()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state, sharded or whole, into what this model is. Raises `ValueError` where it is another
        model's."""
        own, tied = _by_name(self.model)
        if names := differing(_of_fixed_shape(own), _of_fixed_shape(saved["model"])):
            raise ValueError(f"{names} differ in name or shape; is it another model's?")
        masters = masters_of(saved)
        weights = {name: sharded_as(own[name], masters.get(name, value)) for name, value in saved["model"].items()}
        self.model.load_state_dict({**weights, **{name: weights[first] for name, first in tied.items()}})
        for number, (optimizer, kept) in enumerate(zip(self.optimizers, saved["optimizers"], strict=True)):
            self._load_optimizer(number, optimizer, kept)
        self.precision.load_state_dict(saved["precision"])

    def _load_optimizer(self, number: int, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
        """By names: neither the order of the groups nor that of the parameters in them has to be what it was."""
        names = self.precision.parameter_names(optimizer)
        groups = list(saved["groups"])
        state: dict[Any, Any] = dict(saved["rest"])
        restored: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            first = sum(len(earlier["params"]) for earlier in restored)
            positions = dict(enumerate(group["params"], first))
            stepped = {names[weight] for weight in positions.values()}
            index = next((index for index, other in enumerate(groups) if set(other["params"]) == stepped), None)
            if index is None:
                raise _steps_others(number)
            restored.append({**groups.pop(index), "params": list(positions)})
            for position, parameter in positions.items():
                entries = saved["state"].get(names[parameter], {})
                if own := {key: value for key, value in entries.items() if key != MASTER}:
                    state[position] = {key: sharded_as(parameter, value) for key, value in own.items()}
        if groups:
            raise _steps_others(number)
        optimizer.load_state_dict({"state": state, "param_groups": restored})


def masters_of(saved: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The float32 masters in a saved state, by their parameters' names."""
    states = (optimizer["state"] for optimizer in saved["optimizers"])
    own = {name: entries[MASTER] for state in states for name, entries in state.items() if MASTER in entries}
    return {**saved["precision"].get("masters", {}), **own}  # where earlier versions have them


def is_shard(value: Any) -> bool:
    if not hasattr(value, "device_mesh"):  # most are plain, and importing DTensor takes most of a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def sharded_as(own: Any, value: Any) -> Any:
    """A whole tensor of a sharded one's shape, sharded alike; anything else as it is. Not collective."""
    if not is_shard(own) or is_shard(value) or getattr(value, "shape", None) != own.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, own.device_mesh, own.placements, src_data_rank=None)


def _by_name(model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters and persistent buffers by name, each once; and the names that tied weights have besides."""
    own: dict[str, Any] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in first:
            tied[name] = first[id(value)]
        else:
            first[id(value)] = name
            own[name] = value
    return own, tied


def _of_no_parameter(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    rest = {key: value for key, value in optimizer.state.items() if key not in own}
    if any(isinstance(key, torch.Tensor) for key in rest):
        raise SettingsErrorOfAll(
            f"{type(optimizer).__name__} keeps state of tensors that are in none of its groups, so that it can't be "
            "saved by names: take another optimizer"
        )
    return rest


def _of_fixed_shape(model: Mapping[str, Any]) -> dict[str, Any]:
    """With the names alone of extra state, which may grow: TransformerEngine's is empty until its first step."""
    return {name: None if name.endswith(EXTRA_STATE) else value for name, value in model.items()}


def _steps_others(number: int) -> ValueError:
    return ValueError(f"its optimizer {number} steps other parameters; is it another model's?")
