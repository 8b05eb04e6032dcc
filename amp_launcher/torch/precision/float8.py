"""Linear layers that multiply in eight bits and fewer, by torchao (`amp.gemm`)."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
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
_KERNELS: list[torch.library.Library] = []
"""Of ours, which are there for as long as this is."""


def convert(model: nn.Module, resolved: ResolvedPrecision) -> Chosen:
    """Replace the linear layers of a cast model by torchao's, in place; the parameters stay the same objects.

    Raises `SettingsError` where torchao is missing or of another version, where torch lacks the kernels, and as
    `choose` does.
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
    if resolved.device == "cpu" and FORMATS[resolved.gemm].cpu == "yes":
        if problem := cpu_problem(resolved.gemm):
            raise SettingsError(problem, "amp.gemm")
        _leave_out_onednn()
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
        raise SettingsError(f"amp.gemm={gemm}: {problem}")
    return functools.partial(prototypes.to_mxfp8, emulate=device == "cpu")


def cpu_problem(gemm: str) -> str:
    """Why this torch can't multiply in the format on a CPU, empty where it can: 2.11 knows one scale for a tensor,
    2.13 one for each row, too."""
    if not FORMATS[gemm].recipe.startswith("rowwise"):
        return ""
    operand = torch.zeros(16, 16, dtype=torch.float8_e4m3fn)
    try:
        torch._scaled_mm(operand, operand.t(), torch.ones(16, 1), torch.ones(1, 16), out_dtype=torch.bfloat16)
    except RuntimeError:
        return f"amp.gemm={gemm} has no kernels for a CPU in torch {torch.__version__}; say amp=fp8, which has"
    return ""


def _leave_out_onednn() -> None:
    """Have torch's own kernels multiply in eight bits on a CPU, for the whole process. Where a CPU has AMX, torch 2.13
    leaves products of two e4m3 operands to oneDNN's reference kernel, which takes a thousand times as long and gives
    the same. All other products stay oneDNN's. A torch that doesn't give its kernels out stays as it is."""
    if _KERNELS or not hasattr(torch.library, "get_kernel"):
        return
    library = torch.library.Library("aten", "IMPL")
    _KERNELS.append(library)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name in ("_scaled_mm", "_scaled_mm.out"):  # the latter is what compiled code calls
            library.impl(
                name, _without_onednn(torch.library.get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True
            )


def _without_onednn(kernel: Any) -> Callable[..., Any]:
    def multiply(keys: Any, *args: Any, **kwargs: Any) -> Any:
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return kernel.call_boxed(keys, *args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(enabled)

    return multiply


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
