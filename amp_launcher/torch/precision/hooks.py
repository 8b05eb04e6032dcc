"""What a prepared model does with whatever it takes and gives: inputs in the mode's dtype, outputs in float32."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

from amp_launcher.torch.precision.optimizer_weights import HALF
from amp_launcher.torch.precision.structures import floats_to
from amp_launcher.torch.uncompiled import passed_over


def add(model: nn.Module, inputs_to: torch.dtype | None, autocasts_half: bool) -> None:
    """Cast the inputs of `model` to this dtype, if it isn't None, and its outputs to float32; with `autocasts_half`
    refuse to run half-precision weights without autocast. A container without a forward hands this on to what it
    holds. Copies and pickles of the model keep it."""
    if type(model).forward is nn.Module.forward:
        for child in model.children():
            add(child, inputs_to, autocasts_half)
        return
    if autocasts_half:
        model.register_forward_pre_hook(_refuse_outside)
    if inputs_to is not None:
        model.register_forward_pre_hook(functools.partial(_cast_inputs, dtype=inputs_to), with_kwargs=True)
    model.register_forward_hook(_cast_outputs)


@functools.partial(passed_over, inside=True)
def _refuse_outside(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return
    if any(parameter.dtype in HALF for parameter in module.parameters()):
        raise RuntimeError(
            "the model is called outside of `with precision:`, and its half-precision weights need the block around "
            "every forward, in evaluation too"
        )


@functools.partial(passed_over, inside=True)
def _cast_inputs(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return floats_to(inputs, dtype), floats_to(named, dtype)


@functools.partial(passed_over, inside=True)
def _cast_outputs(module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
    result = floats_to(outputs, torch.float32)
    if result is outputs or not isinstance(outputs, MutableMapping) or not any(outputs is given for given in inputs):
        return result
    for name, value in result.items():  # the module wrote into what it was given, so the caller reads it there
        outputs[name] = value
    return outputs
