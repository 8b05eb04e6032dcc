"""Activation checkpointing in an observed step, so that what is computed again is observed like all else.

Early stopping would end a block's recomputation within an operation, by an exception: the profiler has seen it begin,
and it never runs. Selective checkpointing answers operations from what it kept: they begin, and don't run either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import checkpoint

RECALLED = "precision recalled"
"""Name of the range around an operation that selective checkpointing runs again or answers from what it kept."""


def _mode() -> Any:
    return getattr(checkpoint, "_CachedTorchDispatchMode", None)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Have checkpointed blocks recomputed to their end, and a `RECALLED` range around what may not run, while open.

    Where this torch has no such mode, what selective checkpointing answers is a disagreement of the two observers.
    """
    mode = _mode()
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoint.set_checkpoint_early_stop(False))
        if mode is not None:
            original = mode.__torch_dispatch__

            def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                with torch.profiler.record_function(RECALLED):
                    return original(self, func, types, args, kwargs)

            mode.__torch_dispatch__ = dispatch
            stack.callback(setattr, mode, "__torch_dispatch__", original)
        yield
