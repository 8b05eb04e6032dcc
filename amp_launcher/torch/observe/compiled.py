"""Notices when code of Inductor's is run. The text of its graph travels with the code through Inductor's caches."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from amp_launcher.around.replaced import replaced


def missing() -> str:
    """The private name of torch without which compiled code can't be read; empty where all is there."""
    artifact = _artifact()
    if artifact is None:
        return "torch._inductor.output_code.CompiledFxGraph"
    if "inductor_post_grad_graph_str" not in getattr(artifact, "__annotations__", {}):
        return "CompiledFxGraph.inductor_post_grad_graph_str"
    return ""


@contextlib.contextmanager
def watched(around: Callable[[Any, Sequence[Any], Callable[[], Any]], Any]) -> Iterator[None]:
    """Have `around(artifact, inputs, run)` run Inductor's code while this is open, and return what it returned; the
    compiler itself is unobserved.
    """
    with contextlib.ExitStack() as stack:
        if (artifact := _artifact()) is not None:
            original = artifact.__call__

            def call(code: Any, inputs: Sequence[Any]) -> Any:
                return around(code, inputs, lambda: original(code, inputs))

            stack.enter_context(replaced(artifact, "__call__", functools.wraps(original)(call)))
        if (compiler := _compiler()) is not None:
            enter_around(stack, compiler, "__call__", lambda *given: _unobserved())
        yield


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Without dispatch modes, and without the profiler of this thread.

    Torch disables the modes while it compiles, but not for the forward of a model in DDP (2.13, `CatchErrorsWrapper`).
    There a mode gets the compiler's own tensors, which it can't hand on, and operations that are traced and don't run;
    and a profiler that records shapes crashes where the graph is split by DDP's buckets.
    """
    torch._C._autograd._enable_record_function(False)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._autograd._enable_record_function(True)


def enter_around(
    stack: contextlib.ExitStack,
    owner: type[Any],
    method: str,
    around: Callable[..., contextlib.AbstractContextManager[Any]],
) -> None:
    """Have `around`, given the same arguments, entered around each call of a class's method until `stack` closes."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        with around(*given):
            return original(*given, **named)

    stack.enter_context(replaced(owner, method, call))


def _artifact() -> Any:
    return _imported("torch._inductor.output_code", "CompiledFxGraph")


def _compiler() -> Any:
    return _imported("torch._dynamo.convert_frame", "ConvertFrameAssert")


def _imported(module: str, name: str) -> Any:
    """None where this torch has no such module or name."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
