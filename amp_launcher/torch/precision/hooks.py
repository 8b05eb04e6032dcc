"""What a prepared model does with whatever it takes and gives: inputs in the mode's dtype, outputs in float32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from amp_launcher.torch.precision.structures import floats_to
from amp_launcher.torch.uncompiled import passed_over


def add(model: nn.Module, inputs_to: torch.dtype | None) -> None:
    """Cast the inputs of `model` to this dtype, if it isn't None, and its outputs to float32. A container without a
    forward hands this on to what it holds. Copies and pickles of the model keep it."""
    if type(model).forward is nn.Module.forward:
        for child in model.children():
            add(child, inputs_to)
        return
    if inputs_to is not None:
        model.register_forward_pre_hook(functools.partial(_cast_inputs, dtype=inputs_to), with_kwargs=True)
    model.register_forward_hook(_cast_outputs)


@functools.partial(passed_over, inside=True)
def _cast_inputs(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return floats_to(inputs, dtype), floats_to(named, dtype)


@functools.partial(passed_over, inside=True)
def _cast_outputs(module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
    return floats_to(outputs, torch.float32)
