"""A run's tensors by their parameters' names: what a checkpoint has to hold for any number of ranks to go on with it,
sharded (parallel=fsdp) or each with the whole model (parallel=ddp).

`values` are tensors by `model/NAME` and `optimizers/NUMBER/NAME/KEY`: sharded, or whole. `rest` is everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from recipes.torch_.trained import Trained
from recipes.trainer.checkpoint import Checkpoint
from recipes.trainer.world import SettingsErrorOfAll


class Named(NamedTuple):
    """A state by names."""

    values: dict[str, torch.Tensor]
    rest: dict[str, Any]


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` spread the model's parameters over the ranks."""
    return any(_is_shard(each) for each in model.state_dict().values())  # which first frees what forward gathered


def take_apart(trained: Trained) -> Named:
    """The state of a sharded model. Its values are sharded tensors; what each rank has whole is in the rest."""
    own, tied = _by_name(trained.model)
    values = {f"model/{name}": each.detach() for name, each in own.items() if _is_shard(each)}
    whole = {name: _detached(each) for name, each in own.items() if not _is_shard(each)}
    optimizers = []
    for number, optimizer in enumerate(trained.optimizers):
        names = _names(trained, optimizer)
        state: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
        for parameter, name in names.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if _is_shard(value):
                    values[f"optimizers/{number}/{name}/{key}"] = value.detach()
                else:
                    state[name][key] = value
        groups = [{**group, "params": [names[each] for each in group["params"]]} for group in optimizer.param_groups]
        optimizers.append({"state": state, "groups": groups})
    rest = {"model": whole, "tied": tied, "optimizers": optimizers, "precision": trained.precision.state_dict()}
    return Named(values, rest)


def from_whole(saved: Mapping[str, Any], trained: Trained) -> Named:
    """The state of a whole model, as `Trained.state` has it, for the sharded model of `trained`. Its values stay whole.

    Raises `ValueError` where it is another model's.
    """
    weights, tied = weights_of(saved)
    optimizers = []
    for number, (optimizer, kept) in enumerate(zip(trained.optimizers, saved["optimizers"], strict=True)):
        names = list(_names(trained, optimizer).values())
        positions = [position for group in kept["param_groups"] for position in group["params"]]
        if positions != list(range(len(names))):
            raise _steps_others(number)
        state = {name: kept["state"].get(position, {}) for position, name in enumerate(names)}
        groups = [{**group, "params": [names[each] for each in group["params"]]} for group in kept["param_groups"]]
        optimizers.append({"state": state, "groups": groups})
    rest = {"model": weights, "tied": tied, "optimizers": optimizers, "precision": saved["precision"]}
    return Named({}, rest)


def weights_of(saved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The weights in a state of one file, float32 masters where there are any, by name; and the names that tied weights
    have besides.

    Raises `ValueError` for masters of an older version, which have no names.
    """
    masters = saved["precision"]["masters"]
    if not isinstance(masters, Mapping):
        raise ValueError(
            "its master weights are of an older version and have no names; go on with parallel=ddp, and from the next "
            "checkpoint with parallel=fsdp"
        )
    weights: dict[str, Any] = {}
    tied: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, value in saved["model"].items():
        memory = name
        if isinstance(value, torch.Tensor) and value.numel():
            memory = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if memory in first:
            tied[name] = first[memory]
        else:
            first[memory] = name
            weights[name] = value
    return {name: masters.get(name, value) for name, value in weights.items()}, tied


def load(trained: Trained, state: Named) -> None:
    """Give the state to a model, sharded or whole, and its optimizers. Raises `ValueError` where it is another
    model's."""
    own, tied = _by_name(trained.model)
    saved = {**state.rest["model"], **_part(state.values, "model/")}
    _refuse_others(own, saved)
    weights = {name: _sharded_as(own[name], value) for name, value in saved.items()}
    trained.model.load_state_dict({**weights, **{name: weights[first] for name, first in tied.items()}})
    for number, (optimizer, kept) in enumerate(zip(trained.optimizers, state.rest["optimizers"], strict=True)):
        names = _names(trained, optimizer)
        if [name for group in kept["groups"] for name in group["params"]] != list(names.values()):
            raise _steps_others(number)
        found: dict[int, dict[str, Any]] = {}
        for position, (parameter, name) in enumerate(names.items()):
            entries = {**kept["state"][name], **_part(state.values, f"optimizers/{number}/{name}/")}
            if entries:
                found[position] = {key: _sharded_as(parameter, value) for key, value in entries.items()}
        count = iter(range(len(names)))
        groups = [{**group, "params": [next(count) for _ in group["params"]]} for group in kept["groups"]]
        optimizer.load_state_dict({"state": found, "param_groups": groups})
    masters = {name: weights[name] for name in trained.precision.state_dict()["masters"] if name in weights}
    trained.precision.load_state_dict({**state.rest["precision"], "masters": masters})


def read_shards(found: Checkpoint, rest: dict[str, Any], model: nn.Module | None = None, only: str = "") -> Named:
    """A checkpoint of shards: in shards as `model` has them, or whole; `only` the values whose names begin so.

    Raises `ValueError` for one that can't be read.
    """
    from recipes.torch_ import shards

    own = _by_name(model)[0] if model is not None else {}
    targets: dict[str, torch.Tensor] = {}
    for key, described in shards.describe(found.path, found.manifest["files"]).items():
        if not key.startswith(only):
            continue
        kind, _, name = key.partition("/")
        if kind == "optimizers":
            name = name.partition("/")[2].rpartition("/")[0]
        targets[key] = _empty_like(own.get(name), described.size, described.dtype)
    shards.read(found.path, found.manifest["files"], targets)
    return Named(targets, rest)


def refusal(found: Checkpoint, ranks: int, sharded: bool, why: str) -> SettingsErrorOfAll:
    """Why a run of so many ranks can't go on from a checkpoint of another sharding."""
    was = f"shards of {_ranks(found.shards)}" if found.shards else "one whole state"
    now = f"{'has shards' if sharded else 'has whole weights'} on {_ranks(ranks)}"
    return SettingsErrorOfAll(
        f"{found.path} was saved as {was}, and this run {now}; it can't go on from it: {why}. "
        "Name another run folder to start anew",
        "parallel",
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


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


def _names(trained: Trained, optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    """What an optimizer steps, parameters or their masters, in its order, with the parameters' names."""
    names = {each: name for name, each in trained.precision.master_parameters().items()}
    return {each: names[each] for group in optimizer.param_groups for each in group["params"]}


def _part(values: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _refuse_others(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    sizes, others = ({name: getattr(each, "shape", None) for name, each in part.items()} for part in (own, saved))
    differing = sorted(
        name for name in {*own, *saved} if name not in own or name not in saved or sizes[name] != others[name]
    )
    if differing:
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ValueError(f"{', '.join(differing[:4])}{more} differ in name or shape; is it another model's?")


def _steps_others(number: int) -> ValueError:
    return ValueError(f"its optimizer {number} steps other parameters; is it another model's?")


def _is_shard(value: Any) -> bool:
    if not hasattr(value, "device_mesh"):  # most are plain, and importing DTensor takes most of a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _sharded_as(own: Any, value: Any) -> Any:
    """A whole tensor of a sharded one's shape, sharded alike; anything else as it is. Not collective."""
    if not _is_shard(own) or _is_shard(value) or getattr(value, "shape", None) != own.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, own.device_mesh, own.placements, src_data_rank=None)


def _empty_like(own: Any, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    if not _is_shard(own):
        return torch.empty(size, dtype=dtype)
    from torch.distributed import tensor

    return tensor.empty(size, dtype=dtype, device_mesh=own.device_mesh, placements=own.placements)
