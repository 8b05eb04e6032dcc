"""Digests of what a run in torch trains: of each tensor on this rank, by name.

On a CPU SHA-256. On a GPU integer sums over the tensor's 64-bit words, so that 8 bytes of each tensor go to the host:

    sum(word[i] * weight[i]) + RATIO * sum((word[i] >> 32) * weight[i])    modulo 2**64, weights odd

Any change of one word changes it: an odd weight is invertible modulo 2**64. The second sum is for changes of the words'
highest bits, of which two would cancel in the first. Integer sums are the same in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from amp_launcher.loop import digests
from amp_launcher.step_record import BYTES
from amp_launcher.torch.precision.saved_state import MASTER
from amp_launcher.torch.trained import masters_of

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_RATIO = 0xC2B2AE3D27D4EB4F - 2**64
_CHUNK = 2**22
"""Words that are summed at once: 32 MiB."""


def of_state(state: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """A digest of each tensor and number of a state (`amp_launcher.torch.trained`), as it is or as it was saved.

    Of a saved state, which is on the CPU, each tensor is moved to where that of the state `like` is.
    """
    values = dict(_named(state))
    local = {name: _local(value) for name, value in values.items() if torch.is_tensor(value)}
    for name, value in _named(like) if like else ():
        if name in local and torch.is_tensor(value):
            local[name] = local[name].to(value.device)
    on_cpu = {name: _bytes(tensor).numpy() for name, tensor in local.items() if tensor.device.type == "cpu"}
    others = [name for name in local if name not in on_cpu]
    sums = torch.stack([word_sum(local[name]) for name in others]).tolist() if others else []
    by_name = digests.of_buffers(on_cpu)
    by_name |= {name: (total % 2**64).to_bytes(BYTES, "big") for name, total in zip(others, sums, strict=True)}
    return {name: by_name[name] if name in by_name else digests.of_value(value) for name, value in values.items()}


def _named(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from _leaves("model", state["model"])
    for number, optimizer in enumerate(state["optimizers"]):
        prefix = "optimizer" if len(state["optimizers"]) == 1 else f"optimizer.{number}"
        for name, entries in optimizer["state"].items():
            yield from _leaves(f"{prefix}.{name}", {key: value for key, value in entries.items() if key != MASTER})
        yield from _leaves(f"{prefix}.rest", optimizer["rest"])
    yield from _leaves("masters", masters_of(state))
    for key, value in state["precision"].items():
        if key != "masters":
            yield from _leaves(key, value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _leaves(f"{name}.{index}", inner)
    elif torch.is_tensor(value) or isinstance(value, (int, float)):
        yield name, value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is sharded; else the tensor."""
    to_local = getattr(tensor, "to_local", None)
    return (tensor if to_local is None else to_local()).detach()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def word_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The integer sum over the tensor's bytes, a scalar on its device. The tensor is read in parts of 32 MiB."""
    content = _bytes(tensor)
    padding = -content.numel() % 8
    tail = content[content.numel() - content.numel() % 8 :]
    total = torch.full((), content.numel(), dtype=torch.int64, device=content.device)
    aligned = content[: content.numel() - len(tail)]
    if aligned.data_ptr() % 8:  # a view into another tensor's memory
        aligned = aligned.clone()
    parts = list(aligned.view(torch.int64).split(_CHUNK)) if len(aligned) else []
    if padding:
        parts.append(torch.nn.functional.pad(tail, (0, padding)).view(torch.int64))
    for words in parts:
        weights = _weights(words.device)[: len(words)]
        sums = (words * weights).sum() + (weights * (words >> 32)).sum() * _RATIO
        total = total * _GOLDEN + sums
    return total


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """Odd numbers without a pattern, one for each word of a part: multiples of `_GOLDEN`, mixed as hashes are."""
    mixed = torch.arange(1, _CHUNK + 1, device=device) * _GOLDEN
    for shift in (29, 32):
        mixed = (mixed ^ (mixed >> shift)) * _RATIO
    return mixed.bitwise_or_(1)
