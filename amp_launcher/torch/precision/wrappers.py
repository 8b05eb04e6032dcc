"""What a prepared model was wrapped in afterwards."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def of_ddp(models: Sequence[nn.Module]) -> list[DistributedDataParallel]:
    """The DDP wrappers of any of the models, or of a part of one. A wrapped model doesn't know its wrapper, so that all
    objects of this process are asked: once for each model."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    found = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), DistributedDataParallel)]
    parts = {part for model in models for part in model.modules()}
    return [wrapper for wrapper in found if not parts.isdisjoint(wrapper.modules())]
