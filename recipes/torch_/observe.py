"""What really ran in a training step, seen while it runs: settings are not evidence.

    steps = choose_steps(total_steps, seed)
    witness = Witness(model, precision)
    for number in range(1, total_steps + 1):
        with witness.step(number) if number in steps else contextlib.nullcontext():
            ...                                    # forward, backward and optimizer, whole
    result["observed"] = observed(gather(witness.reports), steps)

An observed step computes what it would have computed unobserved, bit for bit; it is slower, so it belongs outside of
what is timed. Blind to threads of Python that compute beside the one that trains.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import distributed, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from recipes import verdict
from recipes.torch_ import audit, compiled, eager, float32_probe, flops
from recipes.torch_.calls import Call, dtype_name
from recipes.torch_.cast import NORMS
from recipes.torch_.flops import Unaccounted
from recipes.torch_.precision import Precision


def choose_steps(total: int, seed: int, first: int = 1) -> set[int]:
    """Steps to observe out of `first` to `total`, counted from 1: the first, the last, and one drawn by the seed."""
    if total < first:
        return set()
    between = random.Random(f"{seed} {first} {total}").randint(first, total)
    return {first, between, total}


def gather(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of all ranks, on every rank. Collective where `torch.distributed` is initialised."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return list(reports)
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, list(reports))
    return [report for each in everyone for report in each]


def observed(reports: Iterable[dict[str, Any]], planned: Iterable[int] = ()) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks; a step of `planned` that is not there is `unknown`."""
    return verdict.observed(reports, planned)


class Witness:
    """Watches single training steps of `model`, which may be wrapped by DDP or compiled, under `precision`."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.reports: list[dict[str, Any]] = []
        """One for each step observed on this rank, ready for JSON; they may be saved and put back on resuming."""
        self._model = model
        self._precision = precision
        names = _names(model)
        self._kept = {
            module
            for module, name in names.items()
            if any(
                fnmatchcase(".".join(name.split(".")[:depth]), pattern)
                for pattern in precision.amp.keep_fp32
                for depth in range(1, name.count(".") + 2)
            )
        }
        self._modules = list(names)

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch one whole step: forward, backward and optimizer. Nothing is reported of a step that raises."""
        missing = eager.missing(compiles=any(_is_compiled(each) for each in self._model.modules()))
        if missing:
            yield
            self.reports.append({**self._head(number), "problems": [f"this torch has no {missing}"]})
            return
        watch = _Watch(self._kept, self._owners())
        with contextlib.ExitStack() as stack:
            profile = watch.start(stack)
            yield
        self.reports.append({**self._head(number), **watch.report(profile, self._precision)})

    def _head(self, number: int) -> dict[str, Any]:
        ranks = distributed.is_available() and distributed.is_initialized()
        precision = self._precision
        amp = precision.amp
        return {
            "rank": distributed.get_rank() if ranks else 0,
            "world_size": distributed.get_world_size() if ranks else 1,
            "step": number,
            "rule": {
                "level": amp.level,
                "dtype": dtype_name(precision.dtype),
                "allow": list(precision.allow),
                "deny": list(precision.deny),
                "keep_fp32": list(amp.keep_fp32),
                "masters": amp.level == "o2" and amp.master_weights is not False,
                "tf32": precision.tf32,
                "device": precision.device.type,
            },
            "calls": [],
            "listed": [],
            "unseen": [],
            "unaccounted": {},
            "audit": "",
            "parameters": self._parameters(),
            "optimizer": {},
            "float32": {"switches": {}, "arithmetic": {}},
            "xla_clusters": None,
            "problems": [],
        }

    def _owners(self) -> dict[nn.Parameter, tuple[nn.Module, bool]]:
        """The module of each parameter, and whether it is kept in float32, as a shared one is if any of its is."""
        owners: dict[nn.Parameter, tuple[nn.Module, bool]] = {}
        for module in self._modules:
            for parameter in module.parameters(recurse=False):
                if module in self._kept or parameter not in owners:
                    owners[parameter] = (module, module in self._kept)
        return owners

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for parameter, (module, kept) in self._owners().items():
            if parameter.is_floating_point():
                group = "kept" if kept else "norm" if isinstance(module, NORMS) else "other"
                elements[group, dtype_name(parameter.dtype)] += parameter.numel()
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


class _Watch:
    """Everything that is looking on during one step."""

    def __init__(self, kept: Collection[nn.Module], owners: dict[nn.Parameter, tuple[nn.Module, bool]]) -> None:
        self.mode = eager.Dispatched(kept, self._on_float32)
        self.problems: list[str] = []
        self._keeps = bool(kept)
        self._owners = owners
        self._owners_by_address: dict[int, tuple[nn.Module, bool]] = {}
        self._stepped: Counter[str] = Counter()
        self._switches: dict[str, str] = {}
        self._arithmetic: dict[str, str] = {}
        self._probed: set[bool] = set()

    def start(self, stack: contextlib.ExitStack) -> Any:
        """Enter all of it; the profiler comes back, None where another one is at work."""
        for hook in (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            stack.callback(hook.remove)
        stack.enter_context(compiled.watched(self._around_compiled))
        try:
            profile = stack.enter_context(audit.profiler())
        except RuntimeError as error:
            self.problems.append(f"no second witness: {error}")
            profile = None
        stack.enter_context(self.mode)
        return profile

    def report(self, profile: Any, precision: Precision) -> dict[str, Any]:
        listed = (*precision.allow, *precision.deny)
        seen = audit.read(profile, listed) if profile is not None else audit.Audit()
        calls = self.mode.record.calls
        return {
            "calls": _aggregate(_with_functions(calls, seen)),
            "listed": [
                {"function": function, "dtypes": list(dtypes), "calls": count}
                for (function, dtypes), count in seen.listed.items()
            ],
            "unseen": [each for each in listed if not audit.has_operation(each)],
            "unaccounted": dict(self.mode.record.unaccounted),
            "audit": audit.disagreement(calls, seen) if profile is not None else "",
            "optimizer": dict(self._stepped),
            "float32": {"switches": self._switches, "arithmetic": self._arithmetic},
            "problems": self.problems,
        }

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.mode.optimizer_steps += 1
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.grad is not None and each.is_floating_point():
                    self._stepped[dtype_name(each.dtype)] += each.numel()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.mode.optimizer_steps -= 1

    def _on_float32(self, device: torch.device) -> None:
        """Float32 is about to be multiplied: how it is set, and once in forward and in backward how it is done."""
        for name, setting in float32_probe.switches(device).items():
            if self._switches.get(name) in (None, *verdict.EXACT_SWITCHES):
                self._switches[name] = setting
        backward = eager.in_backward()
        if backward not in self._probed:
            self._probed.add(backward)
            for name, found in float32_probe.arithmetic(device).items():
                if self._arithmetic.get(name, "float32") == "float32":
                    self._arithmetic[name] = found

    @contextlib.contextmanager
    def _around_compiled(self, artifact: Any, inputs: Sequence[Any]) -> Iterator[None]:
        with self.mode.paused():
            if not self.mode.in_optimizer():
                self._count_compiled(artifact, inputs)
            yield

    def _count_compiled(self, artifact: Any, inputs: Sequence[Any]) -> None:
        record = self.mode.record
        missing = compiled.missing()
        if missing:
            record.unaccounted[f"compiled code (this torch has no {missing})"] += 1
            return
        try:
            graph = compiled.parse(artifact.inductor_post_grad_graph_str)
            found = compiled.calls(graph, inputs, eager.in_backward(), self._keeps, self._owner)
        except (SyntaxError, Unaccounted) as error:
            record.unaccounted[f"compiled code ({error})"] += 1
            return
        record.unaccounted.update(graph.unaccounted)
        record.calls.extend(found)
        if any(call.dtype == "float32" for call in found):
            self._on_float32(next(each.device for each in inputs if isinstance(each, torch.Tensor)))

    def _owner(self, tensor: torch.Tensor) -> tuple[nn.Module, bool] | None:
        """The module whose parameter lies where the tensor does, and whether it is kept in float32."""
        if not self._owners_by_address:
            for parameter, owner in self._owners.items():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                self._owners_by_address[local.untyped_storage().data_ptr()] = owner
        return self._owners_by_address.get(tensor.untyped_storage().data_ptr())


def _names(model: nn.Module) -> dict[nn.Module, str]:
    """Each module with the name it has in the model as it was before it was wrapped."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if inner is None:
            break
        model = inner
    return {module: name.replace("_orig_mod.", "") for name, module in model.named_modules()}


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _with_functions(calls: Sequence[Call], seen: audit.Audit) -> Iterator[Call]:
    """The calls with the functions that they came from: the profiler's word, call by call where the two agree."""
    names: dict[int, tuple[str, ...]] = {}
    eager_calls = [index for index, call in enumerate(calls) if not call.compiled]
    for index, each in zip(eager_calls, seen.eager, strict=False):
        if not calls[index].backward and calls[index].operation == each.operation:
            names[index] = (each.function,)
    for index, call in enumerate(calls):
        if call.functions:
            yield call
        else:
            found = names.get(call.origin if call.backward else index)
            yield replace(call, functions=found or _guess(call))


def _guess(call: Call) -> tuple[str, ...]:
    if call.operation == "convolution_backward":
        return flops.functions(call.operation, len(call.operands[2][1]), transposed=False)
    return flops.functions(call.operation, len(call.operands[-1][1]), transposed=False)


def _aggregate(calls: Iterable[Call]) -> list[dict[str, Any]]:
    total: dict[tuple[Any, ...], list[int]] = {}
    for call in calls:
        key = (call.operation, call.functions, call.backward, call.dtype, call.kept, call.compiled, call.device)
        entry = total.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += call.flops
    return [
        {
            "operation": operation,
            "functions": list(functions),
            "backward": backward,
            "dtype": dtype,
            "kept": kept,
            "compiled": in_compiled,
            "device": device,
            "calls": count,
            "flops": work,
        }
        for (operation, functions, backward, dtype, kept, in_compiled, device), (count, work) in total.items()
    ]
