"""Activation checkpointing in an observed step, so that what is computed again is observed like all else.

Early stopping ends a block's recomputation within an operation, by an exception: the profiler has seen it begin, and
perhaps it never runs. Selective checkpointing answers operations from what it kept: they begin, and don't run either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils import checkpoint

from amp_launcher.around.replaced import replaced
from amp_launcher.torch.observe.compiled import enter_around

RECALLED = "precision recalled"
"""Name of the range around an operation that selective checkpointing runs again or answers from what it kept."""
STOPPED = "precision stopped"
"""Name of a range in an operation in which a recomputation stopped."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Have checkpointed blocks recomputed to their end, and a `RECALLED` range around what may not run, while open. A
    block that was called before stops early, in a `STOPPED` range.

    Where this torch has no such mode, what selective checkpointing answers is a disagreement of the two observers.
    """
    mode = getattr(checkpoint, "_CachedTorchDispatchMode", None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoint.set_checkpoint_early_stop(False))
        if stopping := getattr(checkpoint, "_StopRecomputationError", None):
            stack.enter_context(replaced(stopping, "__init__", _stop))
        if mode is not None:
            enter_around(stack, mode, "__torch_dispatch__", lambda *_: torch.profiler.record_function(RECALLED))
        yield


def _stop(error: BaseException) -> None:
    with torch.profiler.record_function(STOPPED):
        pass
