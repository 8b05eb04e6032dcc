"""Modules of TransformerEngine, which multiply in eight or four bits under its autocast (`amp.gemm=mxfp8` and others).

A model is built of them by whoever writes it: nothing is converted. Sources, read up to release 2.18 of
TransformerEngine: `autocast` in `transformer_engine.pytorch.quantization`, which was `fp8_autocast` before 2.9,
`TransformerEngineBaseModule` in `transformer_engine.pytorch.module.base`, and `transformer_engine.common.recipe`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from amp_launcher.precision.gemm import FORMATS, INSTALL, library_problem
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.typed import SettingsError


def find(model: nn.Module, kept: Sequence[nn.Module], gemm: str) -> Chosen:
    """The modules of TransformerEngine in a model that multiply, and the linear layers that aren't. None of them may be
    inside the modules of `kept`, for they go by their own autocast alone.

    Raises `SettingsError` where there are none, and where TransformerEngine is missing or too old.
    """
    base = _import(gemm).module.base.TransformerEngineBaseModule
    modules = dict(model.named_modules())
    inside_kept = {id(inner) for module in kept for inner in module.modules()}
    own = {name: module for name, module in modules.items() if isinstance(module, base) and _multiplies(module)}
    if not own:
        raise SettingsError(
            f"amp.gemm={gemm} is carried out by TransformerEngine in modules of its own, and {type(model).__name__} "
            "has none; build it of transformer_engine.pytorch.Linear and the like, or say amp=fp8",
            "amp.gemm",
        )
    for name, module in own.items():
        if id(module) in inside_kept:
            raise SettingsError(
                f"amp.keep_fp32 names {name}, which multiplies in {gemm} wherever it is; build it of torch.nn instead",
                "amp.keep_fp32",
            )
    others = {name: linear for name, linear in modules.items() if isinstance(linear, nn.Linear) and name not in own}
    return Chosen(tuple(own), dict.fromkeys(others, "not a module of TransformerEngine"))


def autocast(gemm: str) -> AbstractContextManager[Any]:
    """In here TransformerEngine's modules multiply in that format, and so do their backwards, wherever they run."""
    library = _import(gemm)
    recipe = _recipe(gemm)
    if hasattr(library, "autocast"):
        return library.autocast(enabled=True, recipe=recipe)
    return library.fp8_autocast(enabled=True, fp8_recipe=recipe)


@functools.cache
def _recipe(gemm: str) -> Any:
    """One for the whole run: delayed scaling keeps its history by it. Raises `SettingsError` where TransformerEngine
    refuses to make it, as it does for NVTE_BACKWARD_OVERRIDE with delayed scaling."""
    from transformer_engine.common import recipe

    try:
        return getattr(recipe, FORMATS[gemm].recipe)()
    except (AssertionError, ValueError) as error:  # the latter by pydantic, which makes its dataclasses
        message = f"amp.gemm={gemm}: TransformerEngine refuses its own {FORMATS[gemm].recipe}: {error}"
        raise SettingsError(message, "amp.gemm") from None


@functools.cache
def _import(gemm: str) -> Any:
    install = INSTALL["transformer_engine"]
    try:
        import transformer_engine
        import transformer_engine.pytorch as library
    except (ImportError, OSError, RuntimeError) as error:  # what its loading of CUDA libraries raises
        message = f"amp.gemm={gemm} needs TransformerEngine, which can't be imported ({error}): {install}"
        raise SettingsError(message, "amp.gemm") from None
    if problem := library_problem(gemm, getattr(transformer_engine, "__version__", "unknown")):
        raise SettingsError(f"{problem}: {install}", "amp.gemm")
    return library


def _multiplies(module: nn.Module) -> bool:
    # A GroupedLinear of one tensor has 3 dimensions.
    return any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False))
