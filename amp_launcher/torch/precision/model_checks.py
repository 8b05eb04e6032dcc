"""Refuses what would train otherwise than requested, or differently on each rank, without an error."""

from __future__ import annotations

import gc
import inspect
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

LOGGED = {torch.float32: "float", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}
"""The names of dtypes in DDP's logging data."""


def several_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def same_on_all_ranks(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the ranks have the same values, judged by their sums. Collective; True on a single rank."""
    if not several_ranks():
        return True
    total = sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors)
    squares = sum(float(tensor.square().sum(dtype=torch.float64)) for tensor in tensors)
    device = torch.cuda.current_device() if distributed.get_backend() == "nccl" else "cpu"
    ends = torch.tensor([total, squares, -total, -squares], dtype=torch.float64, device=device)
    distributed.all_reduce(ends, distributed.ReduceOp.MAX)
    return bool((ends[:2] == -ends[2:]).all())


def refuse_wrapped(model: nn.Module) -> None:
    """Raise `RuntimeError` where `model`, or a module in it, is already distributed or compiled.

    Wrappers set up buckets, shards and graphs for the dtypes that they find: a cast afterwards raises nothing and,
    under DDP, gives each rank other gradients.
    """
    for name, module in model.named_modules():
        wrapper = _wrapper(module)
        if wrapper:
            where = f"module {name}" if name else "the model"
            raise RuntimeError(
                f"{where} is already wrapped by {wrapper}; precision.prepare(model) comes first, then DDP, FSDP or "
                "compile"
            )


def refuse_late_cast(model: nn.Module) -> None:
    """Raise `RuntimeError` where DDP was given parameters of another dtype than they have now.

    This is what casting the module inside a DDP wrapper leaves. DDP's logging data have the dtypes that it was given;
    a torch without these data is not checked.
    """
    for module in model.modules():
        data: dict[str, str] = getattr(module, "_get_ddp_logging_data", dict)()
        logged = data.get("dtypes")
        if not logged:
            continue
        given = set(logged.split(", "))
        for name, parameter in module.named_parameters():
            now = LOGGED.get(parameter.dtype)
            if parameter.requires_grad and now and now not in given:
                raise RuntimeError(
                    f"parameter {name} is {parameter.dtype}, and DDP was given {logged}: the model was cast after it "
                    "was wrapped; precision.prepare(model) comes first"
                )


def refuse_other_device(model: nn.Module, device: torch.device) -> None:
    """Raise `RuntimeError` where none of the model's parameters is on the device, or is still to be made."""
    devices = {parameter.device for parameter in model.parameters()}
    if devices and not any(own.type == "meta" or _is(own, device) for own in devices):
        raise RuntimeError(
            f"the model is on {' and '.join(sorted(map(str, devices)))}, and this precision is for {device}: call "
            "model.to(precision.device) before, or name the device, as Precision(mode, device=...)"
        )


def refuse_half(model: nn.Module) -> None:
    """Raise `RuntimeError` for a half-precision parameter at o0, which casts nothing."""
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise RuntimeError(
                f"parameter {name} is {parameter.dtype}, and o0 is float32 throughout: call model.float() before "
                "precision.prepare(model), and make the optimizer after that"
            )


def refuse_no_loss(loss: object) -> None:
    """Raise for what has no gradient to begin with."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"precision.backward takes the loss as a tensor, and was given {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(
            f"precision.backward takes a loss of one number, and was given one of shape {list(loss.shape)}: take its "
            ".mean() or .sum()"
        )


def _is(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def refuse_sharded(model: nn.Module, mode: str, instead: str = "amp=o1") -> None:
    """Raise `RuntimeError` where FSDP holds the parameters: weights of our own, as `mode` has, can't follow shards."""
    for module in model.modules():
        if _wrapper(module) == "FSDP":
            raise RuntimeError(
                f"{mode} makes float32 weights of its own and doesn't work with FSDP. FSDP has masters built in: say "
                f"{instead} and hand fully_shard a MixedPrecisionPolicy(param_dtype=precision.dtype, "
                "reduce_dtype=torch.float32)"
            )


def refuse_stale(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
    """Raise `RuntimeError` for an optimizer of parameters that `fully_shard` replaced after it was made."""
    if not any(_wrapper(module) == "FSDP" for model in models for module in model.modules()):
        return
    for optimizer in optimizers:
        stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if not any(hasattr(parameter, "full_tensor") for parameter in stepped):
            raise RuntimeError(
                "fully_shard(model) replaced the parameters that this optimizer steps: call precision.prepare(model), "
                "then fully_shard(model), then optimizer = precision.prepare(AdamW(model.parameters()))"
            )


def refuse_other_models(optimizer: Optimizer, models: Iterable[nn.Module]) -> None:
    """Raise `RuntimeError` for an optimizer of a model that isn't one of these. Parameters of no module are left to the
    optimizer alone."""
    stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    others = stepped.difference(*(model.parameters() for model in models))
    if len(others) == len(stepped):
        raise RuntimeError(
            "this optimizer steps no parameter of a prepared model: make it from model.parameters() of the model that "
            "is prepared"
        )
    if not others:
        return
    for module in gc.get_objects():  # once, and rarely: a parameter doesn't know its module
        if issubclass(type(module), nn.Module) and not others.isdisjoint(vars(module).get("_parameters", {}).values()):
            raise RuntimeError(
                f"this optimizer also steps parameters of a {type(module).__name__} that isn't prepared: call "
                "precision.prepare(model, other, optimizer) with every model that it steps"
            )


def refuse_closure(optimizer: Optimizer) -> None:
    """Raise `RuntimeError` for an optimizer that calls the model itself: it would see unclipped, scaled gradients."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise RuntimeError(
            f"{type(optimizer).__name__} calls the model several times a step, and precision.step can't unscale or "
            "clip the gradients in between: take another optimizer, or say amp=o0 and call optimizer.step(closure)"
        )


def refuse_without_hooks(optimizer: Optimizer) -> None:
    """Raise `RuntimeError` for an optimizer that can't tell when its state is saved and loaded."""
    if not hasattr(optimizer, "_optimizer_state_dict_pre_hooks"):
        raise RuntimeError(
            f"{type(optimizer).__name__} is no optimizer that torch has set up: its class does not call "
            "Optimizer.__init__, so that nothing can be saved with its state; take another optimizer, or say amp=o0"
        )


def refuse_inner(optimizer: Optimizer) -> None:
    """Raise `RuntimeError` for an optimizer that steps by another one, which has lists of the weights of its own: that
    one would step rounded weights, and masters that never move would replace them."""
    lists = {id(group["params"]) for group in optimizer.param_groups}
    for name, value in vars(optimizer).items():
        for inner in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(inner, Optimizer) and any(id(group["params"]) not in lists for group in inner.param_groups):
                own = type(inner).__name__
                raise RuntimeError(
                    f"{type(optimizer).__name__} steps by the {own} in its .{name}, which float32 masters don't reach: "
                    f"prepare {own}(model.parameters()) itself, several for precision.step(a, b), or say amp=o1"
                )


def _wrapper(module: nn.Module) -> str:
    if isinstance(module, (DistributedDataParallel, nn.DataParallel)):
        return type(module).__name__
    if hasattr(module, "_orig_mod"):
        return "torch.compile"
    if any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule") for base in type(module).__mro__):
        return "FSDP"
    return ""


def refuse_shared(optimizers: tuple[Optimizer, ...], clip: float | None) -> None:
    """One norm, taken once of each gradient, can't be of a parameter that two optimizers step."""
    if clip is None or len(optimizers) == 1:
        return
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    parameters = list(itertools.chain.from_iterable(groups))
    if len(set(parameters)) < len(parameters):
        raise RuntimeError(
            "two of these optimizers step the same parameter, and clip= is one norm over all: call "
            "precision.step(optimizer, clip=...) for each"
        )
