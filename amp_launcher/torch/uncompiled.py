"""Functions of ours that torch's compilers leave alone, without importing them: that takes a second."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_SKIPS_BY_CODE = hasattr(torch._C._dynamo.eval_frame, "skip_code")
"""In torch before 2.6."""


def passed_over(function: Callable[..., Any], *, inside: bool = False) -> Callable[..., Any]:
    """Have torch.compile pass over the frame of this function, where it is called by eager code; `inside` says that it
    passes over what the function calls, too, which torch before 2.6 can't."""
    assert isinstance(function, types.FunctionType)
    frames = torch._C._dynamo.eval_frame
    if _SKIPS_BY_CODE:
        frames.skip_code(function.__code__)
    else:
        action = frames._FrameAction
        called = action.SKIP if inside else action.DEFAULT
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, called))
    return function


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable(function)`, which takes several times as long to call, as far as torch has a cheaper
    way: before 2.6 it is that, from when the script has imported the compiler."""
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None and _SKIPS_BY_CODE and "torch._dynamo" in sys.modules:
            disabled = torch.compiler.disable(function)
        if torch._C._len_torch_function_stack():
            with torch._C.DisableTorchFunction():  # the script's modes see its own calls alone
                return (disabled or function)(*args, **kwargs)
        return (disabled or function)(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # what `disable` marks functions by
    return passed_over(call, inside=True)


def is_traced() -> bool:
    """Whether `torch.jit.trace` records what runs, or compares what it has recorded."""
    return torch._C._get_tracing_state() is not None or torch.jit._trace._trace_module_map is not None


def followed_by(run_backward: Callable[..., Any], ended: Callable[[bool], None]) -> Callable[..., Any]:
    """Call `ended` after each backward, with whether it was one that adds to the gradients of weights."""

    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = run_backward(*args, **kwargs)
        ended(bool(kwargs.get("accumulate_grad")))
        return result

    return passed_over(run)
