"""Gradients of half-precision parameters, reduced over DDP's ranks in float32.

DDP itself sums in the parameters' dtype only, and a half-precision sum over many ranks and micro-batches stops growing.
Here a communication hook gets each bucket of gradients, adds the float32 sums of earlier micro-batches, reduces in
float32 and gives DDP the rounded mean. The optimizer steps the float32 one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from amp_launcher.torch.precision.masters import Masters


class Float32Reduction:
    """The communication hook of one DDP model."""

    def __init__(self, masters: Masters, model: DistributedDataParallel) -> None:
        self._masters = masters
        self._group = model.process_group
        self._ranks = distributed.get_world_size(self._group)
        self._memory: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Begin to reduce a `GradBucket`; the future's value is the mean, in the bucket's dtype."""
        buffer = bucket.buffer()
        total = buffer if buffer.dtype == torch.float32 else self._float32_gradients(bucket, buffer)
        total.div_(self._ranks)
        work = distributed.all_reduce(total, group=self._group, async_op=True)

        def mean(reduced: torch.futures.Future[Any]) -> torch.Tensor:
            reduced.value()  # raises what the reduction did
            return buffer if total is buffer else buffer.copy_(total)

        return work.get_future().then(mean)

    def _float32_gradients(self, bucket: Any, buffer: torch.Tensor) -> torch.Tensor:
        """The bucket's gradients in float32, with the sums accumulated before."""
        flat, views = self._memory_for(bucket.index(), buffer, bucket.gradients())
        means: list[torch.Tensor] = []
        accumulated: list[torch.Tensor] = []
        for parameter, view in zip(bucket.parameters(), views, strict=True):
            weight = self._masters.get(parameter)
            if weight is not None:
                total = self._masters.accumulated_sum(weight)
                if total is not None:
                    means.append(view)
                    accumulated.append(total)
                self._masters.set_reduced(weight, view)
        flat.copy_(buffer)
        if accumulated:
            torch._foreach_add_(means, accumulated)
        return flat

    def _memory_for(
        self, index: int, buffer: torch.Tensor, gradients: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Float32 memory for a bucket, and views of it laid out as its gradients are. DDP forms its buckets anew once,
        when it knows the order in which gradients come."""
        memory = self._memory.get(index)
        if memory is None or [tensor.shape for tensor in memory[1]] != [tensor.shape for tensor in gradients]:
            flat = torch.empty_like(buffer, dtype=torch.float32)
            begin = buffer.storage_offset()
            views = [
                flat.as_strided(gradient.size(), gradient.stride(), gradient.storage_offset() - begin)
                for gradient in gradients
            ]
            memory = self._memory[index] = (flat, views)
        return memory


def reduce_in_float32(masters: Masters, model: DistributedDataParallel) -> None:
    """Once for each DDP model. Raises `RuntimeError` where it has a communication hook already."""
    try:
        model.register_comm_hook(Float32Reduction(masters, model), lambda state, bucket: state.start(bucket))
    except RuntimeError as error:
        raise RuntimeError(
            "amp=o2 reduces gradients in float32 by a communication hook of DDP, and this model can't take it: "
            f"{error}; leave out register_comm_hook, or say amp=o1"
        ) from error
