"""The state of a run (`torch.trained`) as a checkpoint has it: shards in files of all ranks, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.torch.trained import Trained, is_shard
from amp_launcher.world.world import SettingsErrorOfAll

Shards = dict[str, torch.Tensor]
"""Sharded tensors by `model/NAME` and `optimizers/NUMBER/NAME/KEY`."""


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` spread the model's parameters over the ranks."""
    return any(is_shard(value) for value in model.state_dict().values())  # which first frees what forward gathered


def split(trained: Trained) -> tuple[Shards, dict[str, Any]]:
    """The state of a sharded model: its shards, and what each rank has whole.

    Raises `SettingsError` for an optimizer that keeps tensors of other shapes than its parameters', or state that
    belongs to none.
    """
    state = trained.state()
    shapes = {name: weight.shape for name, weight in trained.precision.master_parameters().items()}
    shards, model = _parted("model/", state["model"])
    optimizers = []
    for number, optimizer in enumerate(state["optimizers"]):
        if optimizer["rest"]:
            raise SettingsErrorOfAll(
                f"{type(trained.optimizers[number]).__name__} keeps state that belongs to no parameter, so it can't be "
                "saved in shards: say parallel=ddp, or take another optimizer",
                "parallel",
            )
        kept = {}
        for name, entries in optimizer["state"].items():
            for key, value in entries.items():
                if isinstance(value, torch.Tensor) and value.ndim and value.shape != shapes.get(name):
                    raise SettingsErrorOfAll(_unshardable(trained.optimizers[number], name, key), "parallel")
            parts, kept[name] = _parted(f"optimizers/{number}/{name}/", entries)
            shards |= parts
        optimizers.append({**optimizer, "state": kept})
    return shards, {**state, "model": model, "optimizers": optimizers}


def _parted(prefix: str, values: Mapping[str, Any]) -> tuple[Shards, dict[str, Any]]:
    shards = {prefix + name: value for name, value in values.items() if is_shard(value)}
    return shards, {name: value for name, value in values.items() if prefix + name not in shards}


def _unshardable(optimizer: torch.optim.Optimizer, name: str, key: str) -> str:
    return (
        f"{type(optimizer).__name__} keeps {key} of {name} in another shape than the parameter's, so it can't be saved "
        "in shards: say parallel=ddp, or take another optimizer"
    )


def state_of(
    checkpoint: Checkpoint, saved: dict[str, Any], model: nn.Module | None = None, only: str = ""
) -> dict[str, Any]:
    """The state in a checkpoint, of which `saved` is the file that rank 0 wrote: in shards as `model` has them, or
    whole; `only` the shards whose names begin so.

    Raises `ValueError` for one that can't be read.
    """
    if not checkpoint.shards:
        return saved
    from amp_launcher.torch import shards

    own = model.state_dict() if model is not None else {}
    state = {**saved, "model": dict(saved["model"])}
    places: dict[str, tuple[dict[str, Any], str]] = {}
    targets: Shards = {}
    for path, described in shards.describe(checkpoint.path, checkpoint.manifest["files"]).items():
        if not path.startswith(only):
            continue
        kind, _, name = path.partition("/")
        places[path] = state["model"], name
        if kind == "optimizers":
            number, _, entry = name.partition("/")
            name, _, key = entry.rpartition("/")
            places[path] = state["optimizers"][int(number)]["state"][name], key
        targets[path] = _empty_like(own.get(name), described.size, described.dtype)
    shards.read(checkpoint.path, checkpoint.manifest["files"], targets)
    for path, (values, key) in places.items():
        values[key] = targets[path]
    return state


def refusal(checkpoint: Checkpoint, ranks: int, sharded: bool, why: str) -> SettingsErrorOfAll:
    """Why a run of so many ranks can't go on from a checkpoint."""
    was = f"shards of {_ranks(checkpoint.shards)}" if checkpoint.shards else "one whole state"
    now = f"{'has shards' if sharded else 'has whole weights'} on {_ranks(ranks)}"
    return SettingsErrorOfAll(
        f"{checkpoint.path} was saved as {was}, and this run {now}; it can't go on from it: {why}. "
        "Name another run folder to start anew",
        "parallel",
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def _empty_like(own: Any, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    if not is_shard(own):
        return torch.empty(size, dtype=dtype)
    from torch.distributed import tensor

    return tensor.empty(size, dtype=dtype, device_mesh=own.device_mesh, placements=own.placements)
