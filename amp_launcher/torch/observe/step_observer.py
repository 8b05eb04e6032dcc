"""Observes one training step by every means at once, and makes the report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amp_launcher.precision.call_summary import is_half, is_narrow
from amp_launcher.precision.gpu_kernels import RECORDED
from amp_launcher.precision.observation import Guard
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.value_rules import EXACT_SWITCHES
from amp_launcher.torch.observe import (
    compiled,
    dispatch_observer,
    float32_probe,
    flops,
    graph_text,
    profiler_audit,
    recomputation,
)
from amp_launcher.torch.observe.calls import Call, dtype_name, tensors
from amp_launcher.torch.observe.compiled_calls import CompiledCalls
from amp_launcher.torch.observe.evaluation import Excuse, Operands
from amp_launcher.torch.observe.flops import Unaccounted
from amp_launcher.torch.observe.memory import memory_of
from amp_launcher.torch.observe.modules import Modules, local, optimizer_frames
from amp_launcher.torch.observe.recording import Recording
from amp_launcher.torch.observe.roles import in_backward
from amp_launcher.torch.uncompiled import uncompiled

_TOLD = (Excuse.DATA, Excuse.NORM, Excuse.GRADIENTS)
"""What the verdict names."""


class StepObserver:
    """The dispatch mode, the profiler, compiled graphs, optimizers and float32 arithmetic during one step."""

    def __init__(
        self, modules: Modules, resolved: ResolvedPrecision, gemm_layers: Collection[str], guard: Guard
    ) -> None:
        self.mode = dispatch_observer.DispatchObserver(modules, self._on_float32, guard)
        self.problems: list[str] = []
        self._modules = modules
        self._resolved = resolved
        self._gemm_layers = frozenset(gemm_layers)
        self._compiled = CompiledCalls(modules)
        self._guard = guard
        self._recording = Recording()
        self._first_step = contextlib.ExitStack()
        """The profiler's range of a step in which this began."""
        self._stepped: Counter[str] = Counter()
        self._state: Counter[str] = Counter()
        self._writes: dict[nn.Parameter, int] = {}
        """How often each weight had been written at the first call of a module after a backward."""
        self._backwards = 0
        self._switches: dict[str, str] = {}
        self._arithmetic: dict[str, str] = {}
        self._probed: set[bool] = set()

    def start(self, stack: contextlib.ExitStack, after_step: bool = False, hooks: bool = True) -> None:
        """Begin to observe, until `stack` is closed; `after_step` says that an optimizer's step just ended, in a hook.
        Without `hooks` the caller has to call `before_optimizer` and `after_optimizer`."""
        if hooks:
            before, after = (uncompiled(hook, self._guard) for hook in (self.before_optimizer, self.after_optimizer))
            stack.callback(register_optimizer_step_pre_hook(before).remove)
            stack.callback(register_optimizer_step_post_hook(after).remove)
        stack.enter_context(compiled.watched(self._run_compiled))
        stack.enter_context(recomputation.watched())
        stack.enter_context(self._recording)
        stack.enter_context(self.mode.writers.watched())
        if optimizer_frames() and not after_step:  # the profiler can't see when the step began
            self._first_step.enter_context(torch.profiler.record_function(profiler_audit.OPTIMIZER))
            stack.callback(self._first_step.close)
        stack.enter_context(dispatch_observer.beneath(self.mode))
        stack.enter_context(dispatch_observer.left_out_of_traces(self.mode))

    def rest(self) -> None:
        """Observe no further operation."""
        self.mode.rests = True
        self._recording.stop()

    def report(self, evaluation: bool) -> dict[str, Any]:
        """The fields of the report (`amp_launcher.precision.observation`) that were observed, once the stack is closed.

        Evaluations are left out unless the step is one."""
        profile = self._recording.profile
        listed = (*self._resolved.allow, *self._resolved.deny)
        seen = (
            profiler_audit.read(profile, listed, self.mode.counted) if profile is not None else profiler_audit.Audit()
        )
        calls, excuses = self.mode.calls, {} if evaluation else self._excuses()
        named = enumerate(_with_functions(calls, seen))
        trained = (call for index, call in named if index not in excuses)
        beside, judged = of_no_counted_operation(seen.uncounted, self._resolved.capability)
        return {
            "calls": _aggregate(trained, self._gemm_layers),
            "listed": [
                {"function": function, "dtypes": list(dtypes), "calls": count}
                for (function, dtypes), count in seen.listed.items()
            ],
            "unseen": [function for function in listed if not profiler_audit.has_operation(function)],
            "matched": sorted({name for module in self.mode.kept_ran for name in self._modules.kept[module]}),
            "operations": self.mode.operations,
            "unaccounted": dict(self.mode.unaccounted + self._modules.of_transformer_engine()),
            "apart": dict(self.mode.apart + self._named(excuses)),
            "unwritten": self.mode.writers.unseen(),
            "tensors": self.mode.writers.used(),
            "old_weights": self.mode.old,
            "audit": profiler_audit.disagreement(calls, seen) if profile is not None else "",
            "unaudited": self._recording.missing,
            "kernels": seen.kernels,
            "uncounted_kernels": beside,
            "unlaunched_kernels": judged,
            "unscaled": self.mode.unscaled(),
            "optimizer": dict(self._stepped),
            "optimizer_state": dict(self._state),
            "reduced": dict(self.mode.reduced),
            "gathered": dict(self.mode.gathered),
            "float32": {"switches": self._switches, "arithmetic": self._arithmetic},
            "problems": self.problems,
        }

    def _excuses(self) -> dict[int, Excuse]:
        """The calls that are not training's work. At o0 half precision is out of place in all that training uses."""
        excuses = self.mode.evaluations.excuses()
        if self._resolved.level != "o0":
            return excuses
        calls = self.mode.calls
        return {
            index: excuse
            for index, excuse in excuses.items()
            if excuse in (Excuse.EVALUATION, Excuse.GRADIENTS) or not is_half(calls[index].dtype)
        }

    def _named(self, excuses: Mapping[int, Excuse]) -> Counter[str]:
        """Those that the verdict names."""
        named = {index: excuse for index, excuse in excuses.items() if excuse in _TOLD}
        calls = self.mode.calls
        return Counter(
            f"{calls[index].operation} {excuse.value}, in {calls[index].dtype}" for index, excuse in named.items()
        )

    def before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if local(parameter).layout == torch.strided:
                self.mode.evaluations.stepped.add(memory_of(local(parameter)))
            if parameter.grad is not None:
                self.mode.writers.gradient(local(parameter.grad))
            if parameter.grad is not None and parameter.is_floating_point():
                self._stepped[dtype_name(parameter.dtype)] += parameter.numel()

    def stepped_by_hand(self) -> bool:
        """Whether a backward has ended, and weights known before it were written, since this was asked last."""
        memory, backwards = self.mode.writers.memory, self.mode.writers.backwards
        if backwards == self._backwards:
            return False
        writes = {weight: memory.record(local(weight)).writes for weight in self._modules.owners()}
        written = [weight for weight, count in writes.items() if count > self._writes.get(weight, count)]
        self._writes, self._backwards = writes, backwards
        for weight in written:
            self.mode.evaluations.stepped.add(memory_of(local(weight)))
            if weight.is_floating_point():
                self._stepped[dtype_name(weight.dtype)] += weight.numel()
        return bool(written)

    def after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer_frames() == 1:
            self._first_step.close()
        self.mode.writers.forget()
        for entry in optimizer.state.values():
            for value in entry.values() if isinstance(entry, dict) else ():
                if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point():
                    self._state[_stored_dtype(local(value))] += local(value).numel()

    def _on_float32(self, device: torch.device) -> None:
        """Float32 is about to be multiplied: record the switches, and once a phase the arithmetic."""
        for name, setting in float32_probe.switches(device).items():
            if self._switches.get(name) in (None, *EXACT_SWITCHES):
                self._switches[name] = setting
        backward = in_backward()
        if backward not in self._probed:
            self._probed.add(backward)
            for name, result in float32_probe.arithmetic(device).items():
                if self._arithmetic.get(name, "float32") == "float32":
                    self._arithmetic[name] = result

    def _run_compiled(self, artifact: Any, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
        if self.mode.rests:
            return run()
        evaluations, first = self.mode.evaluations, len(self.mode.calls)
        steps = trains = False
        with self.mode.paused():
            with self._guard():
                steps = self.mode.in_optimizer()
                trains = steps or in_backward()
                self.mode.writers.runs(inputs, {})
                if not steps:
                    self._count_compiled(artifact, inputs)
            given = list(inputs)  # which the code empties
            results = run()
        with self._guard():
            new = range(first, len(self.mode.calls))
            self.mode.writers.ran(
                None, given, {}, results, backward=in_backward(), multiplies=bool(new), steps=lambda: steps
            )
            for call in new if not trains else ():  # the forward of what trains runs without gradients too
                evaluations.add(call, tensors([results]), self._operands(given))
        return results

    def _operands(self, given: Sequence[Any]) -> Operands:
        """Of all products of compiled code, which was given these."""
        weights = frozenset(memory_of(value) for value in given if isinstance(value, nn.Parameter))
        trains = any(tensor.requires_grad for tensor in tensors(given))
        known = [self.mode.writers.memory.known(tensor) for tensor in tensors(given)]
        gradients = any(record is not None and record.gradient for record in known)
        return Operands(weights=weights, gradients=gradients and not weights and not trains)

    def _count_compiled(self, artifact: Any, inputs: Sequence[Any]) -> None:
        unaccounted = self.mode.unaccounted
        missing = compiled.missing()
        if missing:
            unaccounted[f"compiled code (this torch has no {missing})"] += 1
            return
        try:
            graph = graph_text.parse(artifact.inductor_post_grad_graph_str)
            calls = self._compiled.calls(graph, inputs, in_backward())
        except (SyntaxError, Unaccounted) as error:
            unaccounted[f"compiled code ({error})"] += 1
            return
        unaccounted.update(graph.unaccounted)
        self.mode.calls.extend(calls)
        self.mode.kept_ran.update(self._compiled.kept_ran)
        if any(call.dtype == "float32" for call in calls):
            self._on_float32(next(tensor.device for tensor in inputs if isinstance(tensor, torch.Tensor)))


def _stored_dtype(tensor: torch.Tensor) -> str:
    """The dtype in which a tensor is stored: a subclass may show another, as eight-bit optimizer state does."""
    while hasattr(tensor, "__tensor_flatten__"):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        tensor = max(parts, key=lambda part: part.numel())
    return dtype_name(tensor.dtype)


def _with_functions(calls: Sequence[Call], seen: profiler_audit.Audit) -> Iterator[Call]:
    """The calls with the functions that they came from, as the profiler shows them where the two observers agree."""
    names: dict[int, tuple[str, ...]] = {}
    eager = [index for index, call in enumerate(calls) if not call.compiled]
    for index, profiled in zip(eager, (call for call in seen.calls if not call.compiled), strict=False):
        if not calls[index].backward and calls[index].operation == profiled.operation:
            names[index] = profiled.functions
    for index, call in enumerate(calls):
        if call.functions:
            yield call
        else:
            functions = names.get(call.origin if call.backward else index)
            yield replace(call, functions=functions or flops.functions(call.operation, call.operands))


def _aggregate(calls: Iterable[Call], gemm_layers: Collection[str]) -> list[dict[str, Any]]:
    total: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        use = call.use
        key = (call.operation, call.functions, call.backward, call.dtype, call.kept, call.compiled, call.device)
        place = use.layer if use.layer is None else use.layer in gemm_layers
        total.setdefault((*key, use.role, use.formats, use.emulates, call.scales, place), []).append(call)
    return [_entry(group, bool(gemm_layers)) for group in total.values()]


def _entry(calls: Sequence[Call], names_layers: bool) -> dict[str, Any]:
    """Calls that are alike, as a report has them. Without `amp.gemm` only narrow products name their layers."""
    call = calls[0]
    entry = {
        "operation": call.operation,
        "functions": list(call.functions),
        "backward": call.backward,
        "role": call.use.role or "",
        "dtype": call.dtype,
        "kept": call.kept,
        "compiled": call.compiled,
        "device": call.device,
        "calls": len(calls),
        "flops": sum(call.flops for call in calls),
    }
    if names_layers or is_narrow(call.dtype):
        layers = [call.use.layer for call in calls]
        entry["operands"] = list(call.use.formats)
        entry["emulates"] = list(call.use.emulates)
        entry["scales"] = list(call.scales)
        entry["layers"] = None if None in layers else list(dict.fromkeys(filter(None, layers)))
    return entry


def of_no_counted_operation(
    uncounted: Mapping[tuple[str, str], int], capability: tuple[int, int] | None
) -> tuple[dict[str, int], dict[str, int]]:
    """The GPU's matrix kernels of no counted operation, by name and operator: those that stand beside the verdict, and
    those that change it, which no operator launched."""
    judged = capability is not None and capability[0] in RECORDED
    beside = {
        f"{kernel} in {operator or 'no operation'}": times
        for (kernel, operator), times in uncounted.items()
        if operator or not judged
    }
    return beside, {kernel: times for (kernel, operator), times in uncounted.items() if judged and not operator}
