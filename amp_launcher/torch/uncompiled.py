"""Functions of ours that torch's compilers leave alone, without importing them: that takes a second."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from amp_launcher.precision.observation import Guard

StepHook = Callable[[Optimizer, Any, Any], None]
"""Of an optimizer's step, before it or after it: (optimizer, its arguments by place, by name)."""

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


def uncompiled(hook: StepHook, guard: Guard) -> StepHook:
    """`torch.compiler.disable(hook)` of an optimizer's step, and `guard.hook(hook)`, in one call: those take several
    times as long, and hooks run in each step. Before torch 2.6 it is the former from when the script has imported the
    compiler."""
    problems, called = guard.problems, hook

    @functools.wraps(hook)
    def call(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal called
        if problems:
            return
        if _SKIPS_BY_CODE and called is hook and "torch._dynamo" in sys.modules:
            called = torch.compiler.disable(hook)
        try:
            if torch._C._len_torch_function_stack():
                with torch._C.DisableTorchFunction():  # the script's modes see its own calls alone
                    called(optimizer, args, kwargs)
            else:
                called(optimizer, args, kwargs)
        except Exception as error:
            if not guard.takes(error):
                raise

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
