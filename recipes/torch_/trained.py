"""Everything that training changes, and its state by the names of parameters: any number of ranks can resume from it,
sharded (parallel=fsdp) or each with the whole model (parallel=ddp).

    {"model": {name: value},                            parameters and persistent buffers, each once
     "tied": {name: name},                              further names of shared parameters -> the name above
     "optimizers": [{"state": {name: {key: value}},
                     "groups": [{"params": [name], key: value}]}],
     "precision": {"masters": {name: value}, ...}}      `Precision.state_dict`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recipes.torch_.precision import Precision
from recipes.torch_.precision.masters import differing


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The cast model without wrappers, its optimizers, and the precision with its own state."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision

    def state(self) -> dict[str, Any]:
        """The state as it is, without copies. Of a sharded model its tensors are sharded too."""
        own, tied = _by_name(self.model)
        optimizers = []
        for optimizer in self.optimizers:
            names = self.precision.parameter_names(optimizer)
            kept = {name: dict(optimizer.state[each]) for each, name in names.items() if each in optimizer.state}
            groups = [
                {**group, "params": [names[each] for each in group["params"]]} for group in optimizer.param_groups
            ]
            optimizers.append({"state": kept, "groups": groups})
        model = {name: each.detach() if isinstance(each, torch.Tensor) else each for name, each in own.items()}
        return {"model": model, "tied": tied, "optimizers": optimizers, "precision": self.precision.state_dict()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state, sharded or whole, into what this model is. Raises `ValueError` where it is another
        model's."""
        own, tied = _by_name(self.model)
        if names := differing(own, saved["model"]):
            raise ValueError(f"{names} differ in name or shape; is it another model's?")
        masters = saved["precision"]["masters"]
        weights = {name: sharded_as(own[name], masters.get(name, each)) for name, each in saved["model"].items()}
        self.model.load_state_dict({**weights, **{name: weights[first] for name, first in tied.items()}})
        for number, (optimizer, kept) in enumerate(zip(self.optimizers, saved["optimizers"], strict=True)):
            self._load_optimizer(number, optimizer, kept)
        names = self.precision.state_dict()["masters"]
        masters = {name: weights.get(name, masters.get(name)) for name in names if name in weights or name in masters}
        self.precision.load_state_dict({**saved["precision"], "masters": masters})

    def _load_optimizer(self, number: int, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
        """By names: neither the order of the groups nor that of the parameters in them has to be what it was."""
        names = self.precision.parameter_names(optimizer)
        groups = {frozenset(group["params"]): group for group in saved["groups"]}
        state: dict[int, dict[str, Any]] = {}
        restored: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            first = sum(len(each["params"]) for each in restored)
            positions = dict(enumerate(group["params"], first))
            known = groups.pop(frozenset(names[each] for each in positions.values()), None)
            if known is None:
                raise _steps_others(number)
            restored.append({**known, "params": list(positions)})
            for position, parameter in positions.items():
                if entries := saved["state"].get(names[parameter]):
                    state[position] = {key: sharded_as(parameter, value) for key, value in entries.items()}
        if groups:
            raise _steps_others(number)
        optimizer.load_state_dict({"state": state, "param_groups": restored})


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


def _steps_others(number: int) -> ValueError:
    return ValueError(f"its optimizer {number} steps other parameters; is it another model's?")
