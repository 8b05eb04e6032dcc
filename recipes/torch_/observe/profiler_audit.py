"""The second observer: torch's profiler, in the dispatcher itself, which no Python mode can hide operations from.

It also shows which torch function each matrix product came from (`linear`, `matmul`), and the dtypes in which the
functions of `amp.allow` and `amp.deny` ran.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from recipes.torch_.observe import flops
from recipes.torch_.observe.calls import Call, dtype_name
from recipes.torch_.observe.recomputation import RECALLED

PROBE = "precision probe"
"""Name of the range around the observer's own arithmetic."""

_QUIET = "KINETO_LOG_LEVEL"
_COMPILING = "(dynamo_timed)"
_OTHER_NAMES = {
    "cross_entropy": ("cross_entropy_loss",),
    "grid_sample": ("grid_sampler",),
    "logsigmoid": ("log_sigmoid",),
    "multi_dot": ("linalg_multi_dot",),
    "nll_loss": ("nll_loss_nd",),
    "norm": ("norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm"),
    "sub": ("sub", "rsub"),
}
"""torch functions whose operation has another name, or several."""
_IN_PLACE = frozenset("celu dropout elu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 selu silu".split())
"""Functions that take `inplace=True`, and are another operation then: `relu_`."""
_FUNCTIONS = {operation: function for function, operations in _OTHER_NAMES.items() for operation in operations}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledCall:
    """One matrix operation in the profiler's tree."""

    operation: str
    backward: bool
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    function: str
    """The outermost aten operation around it: the torch function that was called."""
    start: int


@dataclass(kw_only=True, slots=True)
class Audit:
    """The profiler's record of one step."""

    eager: list[ProfiledCall] = field(default_factory=list)
    """In the order in which they ran."""
    compiled: list[ProfiledCall] = field(default_factory=list)
    """Kernels called from compiled code; kernels that the compiler wrote itself are not among them."""
    listed: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    """Function of the lists, with the floating dtypes of its tensors -> times called in forward."""


def profiler() -> AbstractContextManager[Any]:
    """A profiler of the dispatcher alone, with shapes. Raises `RuntimeError` where another one is at work."""
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another profiler is at work")  # torch would end that one, and say so only in a log
    os.environ.setdefault(_QUIET, "99")  # read once, at the first profiler; else every step prints two lines
    return torch.autograd.profiler.profile(record_shapes=True)


def read(profile: Any, listed: Sequence[str]) -> Audit:
    """The record of `profile`, which has ended. `listed` are torch functions of interest."""
    tree = profile.kineto_results.experimental_event_tree()
    names = {operation: function for function in listed for operation in _operations(function)}
    names |= {f"{function}_": function for function in listed if function in _IN_PLACE}
    reader = _Reader(names)
    reader.find_ranges(tree)
    for event in tree:
        reader.walk(event, _Context())
    reader.audit.eager.sort(key=lambda call: call.start)
    return reader.audit


def has_operation(function: str) -> bool:
    """Whether calls of a torch function can be observed: some are Python functions that call others."""
    return all(hasattr(torch.ops.aten, operation) for operation in _operations(function))


def _operations(function: str) -> tuple[str, ...]:
    return _OTHER_NAMES.get(function, (function,))


def disagreement(calls: Sequence[Call], audit: Audit) -> str:
    """Where the two observers differ, empty where they agree.

    Eager calls must be the same, one by one. Of compiled products the profiler sees only library calls: there may be no
    more of a dtype than in the graphs.
    """
    eager = [call for call in calls if not call.compiled]
    for call, seen in zip(eager, audit.eager, strict=False):
        if _facts(call) != _facts(seen):
            return f"the dispatch mode saw {_describe(call)} where the profiler saw {_describe(seen)}"
    if len(eager) != len(audit.eager):
        return f"the dispatch mode saw {len(eager)} matrix operations and the profiler {len(audit.eager)}"
    in_graphs = Counter((call.backward, _dtypes(call)) for call in calls if call.compiled)
    in_profile = Counter((seen.backward, _dtypes(seen)) for seen in audit.compiled)
    for (backward, dtypes), count in in_profile.items():
        if count > in_graphs[backward, dtypes]:
            phase = "backward" if backward else "forward"
            return (
                f"compiled {phase} ran {count} products of {dtypes} and its graphs have {in_graphs[backward, dtypes]}"
            )
    return ""


def _facts(call: Call | ProfiledCall) -> tuple[Any, ...]:
    return call.operation, call.backward, call.operands


def _dtypes(call: Call | ProfiledCall) -> str:
    return " and ".join(sorted({dtype for dtype, _ in call.operands}))


def _describe(call: Call | ProfiledCall) -> str:
    shapes = " x ".join(f"{dtype}{list(shape)}" for dtype, shape in call.operands)
    return f"{call.operation} of {shapes} in {'backward' if call.backward else 'forward'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Context:
    """The surroundings of an event in the tree."""

    outermost: str = ""
    backward: bool = False
    compiled: bool = False


class _Reader:
    """Reads the profiler's tree of events.

    Ranges opened in Python are matched by time: under a dispatch mode they are siblings of what they enclose.
    """

    def __init__(self, operations: dict[str, str]) -> None:
        self.audit = Audit()
        self._operations = operations
        self._probes: list[tuple[int, int]] = []
        self._optimizers: list[tuple[int, int]] = []
        self._recalled: list[int] = []

    def find_ranges(self, events: Iterable[Any]) -> None:
        for event in events:
            if event.name == PROBE:
                self._probes.append((event.start_time_ns, event.end_time_ns))
            elif event.name.startswith("Optimizer.step#"):
                self._optimizers.append((event.start_time_ns, event.end_time_ns))
            elif event.name == RECALLED:
                self._recalled.append(event.start_time_ns)
            self.find_ranges(event.children)

    def walk(self, event: Any, context: _Context) -> None:
        name = event.name
        if name.endswith(_COMPILING):
            return
        if name.startswith("autograd::engine::evaluate_function"):
            context = replace(context, backward=True)
        elif name.startswith("## Call CompiledFxGraph"):
            context = replace(context, compiled=True)
        operation = name.removeprefix("aten::") if name.startswith("aten::") else ""
        if operation and not context.outermost:
            context = replace(context, outermost=operation)
            if operation in self._operations and not (
                context.backward or context.compiled or self._excluded(event, context)
            ):
                self.audit.listed[self._operations[operation], _floating(_innermost(event))] += 1
        if operation in flops.FORMULAS:
            seen = _seen(event, operation, context)
            if seen.operands:
                if not self._excluded(event, context) and not self._is_recalled(event):
                    (self.audit.compiled if context.compiled else self.audit.eager).append(seen)
                return
        for child in event.children:
            self.walk(child, context)

    def _is_recalled(self, event: Any) -> bool:
        """Whether selective checkpointing answered it, so that it was not dispatched again and didn't run."""
        within = [start for start in self._recalled if event.start_time_ns <= start <= event.end_time_ns]
        return bool(within) and not _contains(event, event.name, max(within))

    def _excluded(self, event: Any, context: _Context) -> bool:
        """Whether it is the observer's or the optimizer's own arithmetic. An optimizer's closure has gradients."""
        if _within(event, self._probes):
            return True
        gradients = context.backward or event.extra_fields.sequence_number >= 0
        return not gradients and _within(event, self._optimizers)


def _contains(event: Any, name: str, after: int) -> bool:
    """Whether an event of that name began within it after a point in time."""
    children = event.children
    return any(
        (child.name == name and child.start_time_ns >= after) or _contains(child, name, after) for child in children
    )


def _within(event: Any, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= event.start_time_ns <= end for start, end in ranges)


def _seen(event: Any, operation: str, context: _Context) -> ProfiledCall:
    return ProfiledCall(
        operation=operation,
        backward=context.backward,
        operands=_operands(_innermost(event), flops.FORMULAS[operation][0]),
        function=_FUNCTIONS.get(context.outermost, context.outermost),
        start=event.start_time_ns,
    )


def _innermost(event: Any) -> Any:
    """The same operation as it finally ran: autocast and the dispatch mode each dispatch it again."""
    for child in event.children:
        if child.name == event.name:
            return _innermost(child)
    return event


def _operands(event: Any, positions: Iterable[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    inputs = event.extra_fields.inputs
    matrices = _metadata([inputs[position] for position in positions if position < len(inputs)])
    return tuple((dtype_name(matrix.dtype), tuple(matrix.sizes)) for matrix in matrices)


def _floating(event: Any) -> tuple[str, ...]:
    dtypes = [tensor.dtype for tensor in _metadata(event.extra_fields.inputs)]
    return tuple(dtype_name(dtype) for dtype in dtypes if dtype.is_floating_point)


def _metadata(values: Sequence[Any]) -> list[Any]:
    """The tensors among an event's inputs, without those that have no memory, which a compiler traces with."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if getattr(item, "storage_data_ptr", None)]
