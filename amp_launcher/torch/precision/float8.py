"""Linear layers that multiply in eight bits and fewer, by torchao (`amp.gemm`)."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from amp_launcher.precision.gemm import FORMATS, install, library_problem
from amp_launcher.precision.gemm_layers import Chosen, Linear, choose
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.torch.precision.structures import CAST, floats_to
from amp_launcher.typed import SettingsError

LOGGERS = ("torchao", "torch.utils._pytree")


def convert(model: nn.Module, resolved: ResolvedPrecision) -> Chosen:
    """Replace the linear layers of a cast model by torchao's, in place; the parameters stay the same objects.

    Raises `SettingsError` where torchao is missing or of another version, and as `choose` does.
    """
    linears = {name: module for name, module in model.named_modules() if name and isinstance(module, nn.Linear)}
    sizes = {
        name: Linear(layer.in_features, layer.out_features, unfit=_unfit(layer)) for name, layer in linears.items()
    }
    chosen = choose(resolved.amp, sizes, type(model).__name__)
    names: dict[nn.Module, list[str]] = {linears[name]: [] for name in chosen.converted}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in names:
            names[module].append(name)
    converted = _converter(resolved.gemm, resolved.device)
    for linear, places in names.items():
        layer = converted(linear)
        layer.register_forward_pre_hook(_cast_inputs, with_kwargs=True)
        for name in places:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, layer)
    return chosen


def _unfit(layer: nn.Linear) -> str:
    if type(layer) is not nn.Linear:
        return f"a {type(layer).__name__}, whose own forward would be lost"
    if layer._forward_pre_hooks or layer._forward_hooks or layer._backward_pre_hooks or layer._backward_hooks:
        return "it has hooks, which would be lost"
    return "" if layer.weight.dtype in CAST else f"its weights are {layer.weight.dtype}"


def _cast_inputs(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
    """Cast a linear layer's inputs as autocast does. torchao asks for CUDA's autocast alone, and so leaves inputs in
    float32 on a CPU, where the products that stay in half precision would become float32."""
    kind = layer.weight.device.type
    if not torch.is_autocast_enabled(kind):
        return None
    dtype = torch.get_autocast_dtype(kind)
    return floats_to(inputs, dtype), floats_to(named, dtype)


def _converter(gemm: str, device: str) -> Callable[[nn.Module], nn.Module]:
    """From a linear layer to torchao's with the same parameters."""
    wanted = FORMATS[gemm]
    with _quiet():
        try:
            import torchao

            if problem := library_problem(gemm, torchao.__version__):
                raise SettingsError(f"{problem}: {install(gemm)}", "amp.gemm")
            if not wanted.prototype:
                from torchao import float8

                config = float8.Float8LinearConfig.from_recipe_name(wanted.recipe)
                return functools.partial(float8.convert_to_float8_training, config=config)
            from amp_launcher.torch.precision import prototypes
        except (ImportError, AttributeError) as error:  # the latter where torch lacks what a prototype names
            message = f"amp.gemm={gemm} needs torchao, which can't be imported ({error}): {install(gemm)}"
            raise SettingsError(message, "amp.gemm") from None
    if gemm == "nvfp4":
        return prototypes.to_nvfp4
    if device == "cuda" and (problem := prototypes.mxfp8_problem()):
        raise SettingsError(f"amp.gemm={gemm}: {problem}", "amp.gemm")
    return functools.partial(prototypes.to_mxfp8, emulate=device == "cpu")


@contextlib.contextmanager
def fast_kernels(gemm: str, device: torch.device) -> Iterator[None]:
    """On a CPU, without oneDNN where products are in eight bits. Where a CPU has AMX, torch 2.13 leaves products of two
    e4m3 operands to oneDNN's reference kernel, which takes a thousand times as long as torch's own and gives the same.
    """
    enabled = torch.backends.mkldnn.enabled
    try:
        if device.type == "cpu" and FORMATS[gemm].cpu == "yes":
            torch.backends.mkldnn.enabled = False
        yield
    finally:
        torch.backends.mkldnn.enabled = enabled


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what importing torchao 0.18 logs that no one can act on: libraries of kernels that aren't used here and
    that it can't load, and a call of torch that is deprecated."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
