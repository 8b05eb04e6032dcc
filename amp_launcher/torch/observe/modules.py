"""The modules of an observed model: their names and parameters, which run, and which are kept in float32."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import optimizer
from torch.utils import checkpoint

from amp_launcher.torch.observe.memory import memory_of

_ENGINE = "_engine_run_backward"
"""The function that runs a backward: what is below it on the stack called the backward."""

_ENGINES = "transformer_engine."
"""How the names of TransformerEngine's modules begin."""

_SHALLOW = 4
"""Modules in each other that `first_weight` looks into by itself."""


class Owner(NamedTuple):
    """The module that a parameter belongs to."""

    module: nn.Module
    name: str
    kept: bool
    """Whether the module is kept in float32."""


class Running(NamedTuple):
    """What the Python stack shows of an operation that is being dispatched."""

    module: nn.Module | None
    """The innermost known module."""
    kept: nn.Module | None
    """The innermost module that is kept in float32."""
    merged: bool
    """Whether it is in code that torch.compile made of several modules, which hides the modules around it."""
    again: bool
    """In a backward, whether it is a forward that activation checkpointing runs again."""


def optimizer_frames() -> int:
    """The frames of torch's own part of an optimizer's step below the caller; 0 where no optimizer steps.

    They tell it after a step that raised too, when no hook was called.
    """
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename == optimizer.__file__
        frame = frame.f_back
    return count


class Modules:
    """Modules by their names. Parameters are looked up as they are now: a module of a sharded model has others while it
    computes."""

    def __init__(self, model: nn.Module, patterns: Sequence[str] = ()) -> None:
        """`patterns` are those of `amp.keep_fp32`."""
        self.names = names_of(model)
        self.kept: dict[nn.Module, set[str]] = {}
        """Modules kept in float32, with the patterns that name them or what they are in."""
        self._patterns = patterns
        for module, name in self.names.items():
            parts = name.split(".")
            self.keep(module, (".".join(parts[:depth]) for depth in range(1, len(parts) + 1)))

    def keep(self, module: nn.Module, names: Iterable[str]) -> None:
        """Record the module as kept if a pattern matches one of these names."""
        patterns = {pattern for name in names for pattern in self._patterns if fnmatchcase(name, pattern)}
        if patterns:
            self.kept.setdefault(module, set()).update(patterns)

    def running(self) -> Running:
        """Of the caller. The modules themselves are left as they are, without hooks."""
        frame: FrameType | None = sys._getframe(1)
        module = kept = None
        merged = again = False
        while frame is not None and frame.f_code.co_name != _ENGINE:
            if frame.f_code.co_name == "_call_impl" and isinstance(called := frame.f_locals.get("self"), nn.Module):
                if module is None and called in self.names:
                    module = called
                if kept is None and not merged and called in self.kept:
                    kept = called
            merged = merged or frame.f_code.co_filename.startswith("<eval_with_key>")
            again = again or frame.f_code.co_filename == checkpoint.__file__
            frame = frame.f_back
        return Running(module, kept, merged, again or module is not None)

    def owners(self) -> dict[nn.Parameter, Owner]:
        """By parameter; a shared one belongs to a module that is kept, else to a linear layer, else to the first."""
        return dict(self._ranked())

    def of_transformer_engine(self) -> Counter[str]:
        """Modules of TransformerEngine that multiply, by their kind. Their products are calls of its own library, which
        torch doesn't dispatch (`general_gemm` in `transformer_engine.pytorch.cpp_extensions.gemm`)."""
        kinds = [type(module) for module in self.names if any(weight.dim() > 1 for weight in weights_of(module))]
        own = [kind for kind in kinds if any(base.__module__.startswith(_ENGINES) for base in kind.__mro__)]
        return Counter(f"{kind.__name__} of TransformerEngine, whose products torch doesn't see," for kind in own)

    def has_adapters(self) -> bool:
        """Whether the weights that train are float32, and most weights are frozen ones in half precision."""
        trained, frozen = 0, 0
        for parameter, _ in self._ranked():
            if parameter.requires_grad and parameter.is_floating_point():
                if parameter.dtype != torch.float32:
                    return False
                trained += parameter.numel()
            elif parameter.dtype in (torch.float16, torch.bfloat16):
                frozen += parameter.numel()
        return 0 < trained < frozen

    def owners_by_memory(self) -> dict[int, Owner]:
        """The same by `memory_of` the parameter."""
        return {memory_of(local(parameter)): owner for parameter, owner in self._ranked()}

    def _ranked(self) -> Iterator[tuple[nn.Parameter, Owner]]:
        """The owner of a shared parameter comes last."""
        owners = [Owner(module, name, module in self.kept) for module, name in reversed(self.names.items())]
        for owner in sorted(owners, key=lambda owner: (owner.kept, isinstance(owner.module, nn.Linear))):
            for parameter in owner.module._parameters.values():
                if isinstance(parameter, nn.Parameter):  # else one that `functional_call` has put in its place
                    yield parameter, owner


def weights_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Of the module and those in it, by none of their own methods: a script's `parameters` may take other arguments,
    and Keras's makes the parameters of a layer that had none."""
    seen: set[int] = set()
    left: list[nn.Module | None] = [module]
    while left:
        inner = left.pop()
        if inner is None or id(inner) in seen:
            continue
        seen.add(id(inner))
        for weight in inner._parameters.values():
            if weight is not None:
                yield weight
        left.extend(reversed(inner._modules.values()))


def first_weight(module: nn.Module) -> nn.Parameter | None:
    """The first of `weights_of`, in a few steps where it lies in the first module of each: this runs in each step."""
    inner: nn.Module | None = module
    for _ in range(_SHALLOW):
        if inner is None:
            break
        for weight in inner._parameters.values():
            if weight is not None:
                return weight
        inner = next(iter(inner._modules.values()), None)
    return next(weights_of(module), None)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a sharded tensor; any other is returned as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def names_of(model: nn.Module) -> dict[nn.Module, str]:
    """Each module with its name in the model as it was before wrapping."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if inner is None:
            break
        model = inner
    return {module: name.replace("_orig_mod.", "") for name, module in model.named_modules()}
