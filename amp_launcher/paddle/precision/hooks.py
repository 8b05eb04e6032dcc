"""A prepared model's own call: it runs in the mode within `with precision:`, and gives float32, in whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import paddle
from paddle import nn

from amp_launcher.precision.structures import changed

HALF = (paddle.float16, paddle.bfloat16)


def add(model: nn.Layer, context: Callable[[], AbstractContextManager[Any]], running: list[ExitStack]) -> None:
    """Run each call of `model` in a new `context()`, and give float32. A context is on top of `running` until the call
    has returned; where it raised, whoever ends the block closes it. A container without a forward hands this on to what
    it holds."""
    if type(model).forward is nn.Layer.forward:
        for child in model.children():
            add(child, context, running)
        return

    def begin(layer: nn.Layer, inputs: Any) -> None:
        stack = ExitStack()
        stack.enter_context(context())
        running.append(stack)

    def end(layer: nn.Layer, inputs: Any, outputs: Any) -> Any:
        running.pop().close()
        return changed(outputs, paddle.Tensor, _float32)

    model.register_forward_pre_hook(begin)
    model.register_forward_post_hook(end)


def _float32(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor.astype("float32") if tensor.dtype in HALF else tensor
