"""Running statistics of norms: restored where they became non-finite, and made equal on all ranks for evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStatistics:
    """The means and variances that norms update in forward, as they were before an iteration began.

    A step that overflows is skipped, but its forward ran: one infinite activation makes a running mean Inf or NaN for
    good. Training normalizes by the batch and doesn't show it. So a statistic that an iteration left non-finite is
    restored. Nothing waits for the device.
    """

    def __init__(self) -> None:
        self._models: list[weakref.ref[nn.Module]] = []
        self._before: dict[torch.device, torch.Tensor] = {}

    def add(self, model: nn.Module) -> None:
        self._models.append(weakref.ref(model))

    @torch.no_grad()
    def remember(self) -> None:
        """Before a forward. Only the first of an iteration counts."""
        if not self._before:
            self._before = {device: _flat(statistics) for device, statistics in self._by_device().items()}

    @torch.no_grad()
    def restore(self) -> None:
        """After an iteration."""
        before, self._before = self._before, {}
        for device, statistics in self._by_device().items():
            if device not in before:
                continue
            now = _flat(statistics)
            _copy_back(torch.where(torch.isfinite(now), now, before[device]), statistics)

    def _by_device(self) -> dict[torch.device, list[torch.Tensor]]:
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for reference in self._models:
            model = reference()
            for statistic in running(model) if model is not None else ():
                by_device.setdefault(statistic.device, []).append(statistic)
        return by_device


def running(model: nn.Module) -> list[torch.Tensor]:
    """Running means and variances of the norms in a model, where they have any."""
    return [
        statistic
        for module in model.modules()
        if isinstance(module, _NormBase) and module.running_mean is not None
        for statistic in (module.running_mean, module.running_var)
        if statistic is not None
    ]


@torch.no_grad()
def broadcast_statistics(model: nn.Module, group: distributed.ProcessGroup | None = None) -> None:
    """Give every rank the statistics of rank 0, which its checkpoint has. Collective."""
    statistics = running(model)
    if statistics:
        flat = _flat(statistics)
        distributed.broadcast(flat, 0, group=group)
        _copy_back(flat, statistics)


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(tensors))


def _copy_back(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    torch._foreach_copy_(list(tensors), list(flat.split([tensor.numel() for tensor in tensors])))
