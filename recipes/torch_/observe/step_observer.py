"""Observes one training step by every means at once, and makes the report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from recipes.precision.call_summary import is_narrow
from recipes.precision.observation import Guard
from recipes.precision.resolved import ResolvedPrecision
from recipes.precision.value_rules import EXACT_SWITCHES
from recipes.torch_.observe import (
    compiled,
    dispatch_observer,
    float32_probe,
    flops,
    graph_text,
    profiler_audit,
    recomputation,
)
from recipes.torch_.observe.calls import Call, dtype_name, local
from recipes.torch_.observe.compiled_roles import CompiledRoles
from recipes.torch_.observe.flops import Unaccounted
from recipes.torch_.observe.rounding import RoundingObserver


class StepObserver:
    """The dispatch mode, the profiler, compiled graphs, optimizers and float32 arithmetic during one step."""

    def __init__(
        self,
        kept: Mapping[nn.Module, Iterable[str]],
        owners: dict[nn.Parameter, tuple[nn.Module, bool]],
        names: Mapping[nn.Module, str],
        gemm_layers: Collection[str],
        guard: Guard,
        rounding: bool = False,
    ) -> None:
        """`kept` are the modules of `amp.keep_fp32`, with the patterns that matched them; `names` all modules';
        `rounding` says that the rounding of weights is observed."""
        self.mode = dispatch_observer.DispatchObserver(kept, self._on_float32, guard, names)
        self._gemm_layers = frozenset(gemm_layers)
        self._compiled_roles = CompiledRoles(names)
        self._guard = guard
        self._profile: Any = None
        self.problems: list[str] = []
        self._kept = kept
        self._owners = owners
        self._owners_by_address: dict[int, tuple[nn.Module, bool]] = {}
        self._stepped: Counter[str] = Counter()
        self._rounding = RoundingObserver(guard) if rounding else None
        self._state: Counter[str] = Counter()
        self._switches: dict[str, str] = {}
        self._arithmetic: dict[str, str] = {}
        self._probed: set[bool] = set()

    def start(self, stack: contextlib.ExitStack) -> None:
        """Begin to observe, until `stack` is closed."""
        for hook in (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            stack.callback(hook.remove)
        if self._rounding is not None:
            self._rounding.start(stack)
        stack.enter_context(compiled.watched(self._around_compiled))
        stack.enter_context(recomputation.watched())
        try:
            self._profile = stack.enter_context(profiler_audit.profiler())
        except RuntimeError as error:
            self.problems.append(f"no second observer: {error}")
        stack.enter_context(self.mode)

    def report(self, resolved: ResolvedPrecision) -> dict[str, Any]:
        """The fields of the report (`recipes.precision.observation`) that were observed, once the stack is closed."""
        listed = (*resolved.allow, *resolved.deny)
        seen = profiler_audit.read(self._profile, listed) if self._profile is not None else profiler_audit.Audit()
        calls = self.mode.record.calls
        return {
            "calls": _aggregate(_with_functions(calls, seen), self._gemm_layers),
            "listed": [
                {"function": function, "dtypes": list(dtypes), "calls": count}
                for (function, dtypes), count in seen.listed.items()
            ],
            "unseen": [each for each in listed if not profiler_audit.has_operation(each)],
            "matched": sorted({name for each in self.mode.kept_ran for name in self._kept[each]}),
            "unaccounted": dict(self.mode.record.unaccounted),
            "audit": profiler_audit.disagreement(calls, seen) if self._profile is not None else "",
            "optimizer": dict(self._stepped),
            "optimizer_state": dict(self._state),
            "reduced": dict(self.mode.record.reduced),
            "rounded": self._rounding.counts() if self._rounding is not None else {},
            "gathered": dict(self.mode.record.gathered),
            "float32": {"switches": self._switches, "arithmetic": self._arithmetic},
            "problems": self.problems,
        }

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.mode.optimizer_steps += 1
        with self._guard():
            for each in (each for group in optimizer.param_groups for each in group["params"]):
                if each.grad is not None and each.is_floating_point():
                    self._stepped[dtype_name(each.dtype)] += each.numel()
                    if self._rounding is not None and each.dtype == torch.float32:
                        self._rounding.before_step(each)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.mode.optimizer_steps -= 1
        with self._guard():
            for entry in optimizer.state.values():
                for each in entry.values() if isinstance(entry, dict) else ():
                    if isinstance(each, torch.Tensor) and each.dim() and each.is_floating_point():
                        self._state[dtype_name(local(each).dtype)] += local(each).numel()

    def _on_float32(self, device: torch.device) -> None:
        """Float32 is about to be multiplied: record the switches, and once a phase the arithmetic."""
        for name, setting in float32_probe.switches(device).items():
            if self._switches.get(name) in (None, *EXACT_SWITCHES):
                self._switches[name] = setting
        backward = dispatch_observer.in_backward()
        if backward not in self._probed:
            self._probed.add(backward)
            for name, found in float32_probe.arithmetic(device).items():
                if self._arithmetic.get(name, "float32") == "float32":
                    self._arithmetic[name] = found

    @contextlib.contextmanager
    def _around_compiled(self, artifact: Any, inputs: Sequence[Any]) -> Iterator[None]:
        with self.mode.paused():
            with self._guard():
                if not self.mode.in_optimizer():
                    self._count_compiled(artifact, inputs)
            yield

    def _count_compiled(self, artifact: Any, inputs: Sequence[Any]) -> None:
        record = self.mode.record
        self._owners_by_address.clear()
        missing = compiled.missing()
        if missing:
            record.unaccounted[f"compiled code (this torch has no {missing})"] += 1
            return
        try:
            graph = graph_text.parse(artifact.inductor_post_grad_graph_str)
            found = compiled.calls(graph, inputs, dispatch_observer.in_backward(), bool(self._kept), self._owner)
        except (SyntaxError, Unaccounted) as error:
            record.unaccounted[f"compiled code ({error})"] += 1
            return
        record.unaccounted.update(graph.unaccounted)
        told = self._compiled_roles.tell(graph, inputs)
        record.calls.extend(replace(call, told=each) for call, each in zip(found, told, strict=True))
        if any(call.dtype == "float32" for call in found):
            self._on_float32(next(each.device for each in inputs if isinstance(each, torch.Tensor)))

    def _owner(self, tensor: torch.Tensor) -> tuple[nn.Module, bool] | None:
        """The module whose parameter has the tensor's memory, and whether it is kept in float32."""
        if not self._owners_by_address:
            # Not the parameters of `_owners`: a module of a sharded model has others while it computes.
            for module, kept in sorted(dict.fromkeys(self._owners.values()), key=lambda owner: owner[1]):
                for parameter in module.parameters(recurse=False):
                    self._owners_by_address[local(parameter).untyped_storage().data_ptr()] = (module, kept)
        owner = self._owners_by_address.get(tensor.untyped_storage().data_ptr())
        if owner is not None and owner[0] in self._kept:
            self.mode.kept_ran.add(owner[0])
        return owner


def _with_functions(calls: Sequence[Call], seen: profiler_audit.Audit) -> Iterator[Call]:
    """The calls with the functions that they came from, as the profiler shows them where the two observers agree."""
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
            yield replace(call, functions=found or flops.functions(call.operation, call.operands))


def _aggregate(calls: Iterable[Call], gemm_layers: Collection[str]) -> list[dict[str, Any]]:
    total: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        told = call.told
        key = (call.operation, call.functions, call.backward, call.dtype, call.kept, call.compiled, call.device)
        place = told.layer if told.layer is None else told.layer in gemm_layers
        total.setdefault((*key, told.role, told.formats, told.emulates, place), []).append(call)
    return [_entry(each, bool(gemm_layers)) for each in total.values()]


def _entry(calls: Sequence[Call], names_layers: bool) -> dict[str, Any]:
    """Calls that are alike, as a report has them. Without `amp.gemm` only narrow products name their layers."""
    call = calls[0]
    entry = {
        "operation": call.operation,
        "functions": list(call.functions),
        "backward": call.backward,
        "role": call.told.role or "",
        "dtype": call.dtype,
        "kept": call.kept,
        "compiled": call.compiled,
        "device": call.device,
        "calls": len(calls),
        "flops": sum(each.flops for each in calls),
    }
    if names_layers or is_narrow(call.dtype):
        layers = [each.told.layer for each in calls]
        entry["operands"] = list(call.told.formats)
        entry["emulates"] = list(call.told.emulates)
        entry["layers"] = None if None in layers else list(dict.fromkeys(filter(None, layers)))
    return entry
