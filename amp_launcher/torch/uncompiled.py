"""Functions of ours that torch.compile leaves alone, without importing it: that takes a second."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch


def passed_over(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have torch.compile pass over the frame of this function, where it is called by eager code."""
    assert isinstance(function, types.FunctionType)
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):  # in torch before 2.6
        frames.skip_code(function.__code__)
    else:
        action = frames._FrameAction
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable(function)`, from when the script has imported the compiler."""
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None and "torch._dynamo" in sys.modules:
            disabled = torch.compiler.disable(function)
        return (disabled or function)(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # what `disable` marks functions by
    return passed_over(call)
