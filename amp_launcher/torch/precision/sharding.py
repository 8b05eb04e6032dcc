"""A cast model sharded over the ranks by torch's `fully_shard` (FSDP2): parameters, gradients and optimizer state.

At o2 parameters stay float32. Each rank's shard of them is its part of the masters; what is gathered for forward and
backward is half precision, but for norms and modules of `amp.keep_fp32`. Casts of activations are left to autocast, as
under DDP: `fully_shard` would cast every tensor that a block is given, tables of positions among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from amp_launcher.precision.gemm import older
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.support import sharding_problem
from amp_launcher.torch.precision.cast import NORMS, Float32Forward
from amp_launcher.typed import SettingsError

T = TypeVar("T")

HOOKS_OF_EACH = (2, 13)
"""The first release that is known to run the hooks of a group of modules for each of them."""


def shard(model: nn.Module, resolved: ResolvedPrecision, mesh: Any) -> nn.Module:
    """The model, changed in place, with its parameters sharded over the ranks of a device mesh. After `Precision.cast`,
    before the optimizer and `torch.compile`.

    Parameters are gathered block by block; what is in no block, and all that computes in another dtype, apart. Every
    rank has to have the same parameters. Raises `SettingsError` for a module kept in float32 that shares a parameter
    with one that isn't, and for an older torch.
    """
    if problem := sharding_problem(str(torch.__version__)):
        raise SettingsError(problem, "parallel")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # slow to import, and rarely needed

    body = norm = unchanged = MixedPrecisionPolicy(cast_forward_inputs=False)
    if resolved.master_weights:
        half = getattr(torch, resolved.dtype)
        body = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        norm = MixedPrecisionPolicy(output_dtype=half, cast_forward_inputs=False)
    kept = _kept(model) if resolved.level in ("o2", "o3") else []
    shared = _shared(model)
    for module in kept:
        _refuse_shared(module, model, shared)
        fully_shard(module, mesh=mesh, mp_policy=unchanged)
    inside_kept = {inner for module in kept for inner in module.modules()}
    norms = [module for module in model.modules() if isinstance(module, NORMS) and module not in inside_kept]
    if resolved.level == "o2" and (norms := [layer for layer in norms if list(layer.parameters())]):
        # All in one collective, and resharded after backward only: norms are small, and a collective takes long for
        # their size. Blocks are then gathered one after another, with nothing in between. An older torch runs the
        # hooks of a group for its first and last module alone, so that most norms would have a float32 output.
        together = not older(str(torch.__version__), HOOKS_OF_EACH)
        for group in [norms] if together else norms:
            fully_shard(group, mesh=mesh, mp_policy=norm, reshard_after_forward=False)
    for module in list(_blocks(model)):
        if module not in inside_kept and not shared.intersection(module.parameters()):
            fully_shard(module, mesh=mesh, mp_policy=body)
    fully_shard(model, mesh=mesh, mp_policy=body)
    return model


def freed_after(measure: Callable[[], T], model: nn.Module) -> Callable[[], T]:
    """The same measure of a sharded model, which then frees what it gathered: where no backward follows a forward, some
    parameters stay gathered, and the next step would gather none of these."""
    from torch.distributed.fsdp import FSDPModule

    def measured() -> T:
        result = measure()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return result

    return measured


def _kept(model: nn.Module) -> list[nn.Module]:
    """The modules kept in float32 that are not inside another one."""
    kept: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():  # outer ones first
        if isinstance(module, Float32Forward) and module not in inside and list(module.parameters()):
            kept.append(module)
            inside.update(module.modules())
    return kept


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """A network's repeated blocks: modules made of others that stand in a list or in a sequence."""
    for child in model.children():
        called = type(child).forward is not nn.Module.forward
        if called and isinstance(model, (nn.ModuleList, nn.Sequential)) and list(child.children()):
            yield child
        else:
            yield from _blocks(child)


def _shared(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that several modules have, such as tied embeddings."""
    seen: set[nn.Parameter] = set()
    shared: set[nn.Parameter] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (shared if parameter in seen else seen).add(parameter)
    return shared


def _refuse_shared(module: nn.Module, model: nn.Module, shared: set[nn.Parameter]) -> None:
    for name, parameter in module.named_parameters():
        if parameter in shared:
            path = next(path for path, candidate in model.named_modules() if candidate is module)
            raise SettingsError(
                f"amp.keep_fp32 matches {path}, and parallel=fsdp would shard it apart from the module that it shares "
                f"{name} with, as two parameters; untie them, leave it out, or say parallel=ddp",
                "amp.keep_fp32",
            )
