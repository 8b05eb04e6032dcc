"""The second observer: torch's profiler, in the dispatcher itself, which no Python mode can hide operations from.

It also shows which torch function each matrix product came from (`linear`, `matmul`), and the dtypes in which the
functions of `amp.allow` and `amp.deny` ran.

Of a GPU it has the kernels, Triton's too. Triton's launch hook (`triton.knobs.runtime.launch_enter_hook`, 3.9) tells no
more than their names, and changes what it watches: Inductor gives up its own launcher for what it compiles while there
is one (`static_triton_launcher.py`), which stays for the steps that are timed. A kernel whose name shows no product is
seen elsewhere: eager by the memory that nothing wrote (`outside`), compiled as a call of its graph (`graph_text`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._profiler import _EventType

from amp_launcher.precision.gpu_kernels import multiplies_matrices, short_name
from amp_launcher.torch.observe import flops
from amp_launcher.torch.observe.calls import Call, dtype_name
from amp_launcher.torch.observe.recomputation import RECALLED, STOPPED

PROBE = "precision probe"
"""Name of the range around the observer's own arithmetic."""

OPTIMIZER = "Optimizer.step#"
"""How the name of torch's range around an optimizer's step begins."""

_COMPILED = "## Call CompiledFxGraph"
_COMPILING = "(dynamo_timed)"
_BACKWARD = ("autograd::engine::evaluate_function", "Torch-Compiled Region: !")
"""The second is of a backward that compiled autograd compiled as a whole: the number of one follows the mark."""
_OPERATOR = re.compile(r"\w+::\w+")
"""A name of an operator: `flash_attn::forward`. Those of autograd's ranges have a colon more."""
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


@dataclass(kw_only=True, slots=True)
class Audit:
    """The profiler's record of one step."""

    calls: list[Call] = field(default_factory=list)
    """In the order in which they ran, each with the outermost aten operation around it as its function, those of
    libraries without operands. Of compiled code they are the library kernels that it calls, without those that the
    compiler wrote itself."""
    listed: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    """Function of the lists, with the floating dtypes of its tensors -> times called in forward."""
    kernels: int = 0
    """Those that the GPU ran for these calls and in compiled code, which is counted by its graphs, as far as their
    names show that they multiply matrices."""
    uncounted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Other such kernels of the GPU, each with the operator that launched it, if one did -> times. None launches those
    of a graph of CUDA that a script captured and replays, or of a library that calls them past torch."""


def read(profile: Any, listed: Sequence[str], counted: Collection[str] = ()) -> Audit:
    """The record of `profile`, which has ended. `listed` are torch functions of interest, `counted` operators that were
    counted as a whole, whatever they call."""
    tree = profile.kineto_results.experimental_event_tree()
    names = {operation: function for function in listed for operation in _operations(function)}
    names |= {f"{function}_": function for function in listed if function in _IN_PLACE}
    reader = _Reader(names, {name for name in counted if not name.startswith("aten::")})
    reader.find_ranges(tree)
    for event in tree:
        reader.walk(event)
    started = sorted(reader.calls, key=lambda call: call[0])
    return Audit(
        calls=[call for _, call in started],
        listed=reader.listed,
        kernels=reader.kernels,
        uncounted=reader.uncounted,
    )


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
    eager, profiled = ([call for call in own if not call.compiled] for own in (calls, audit.calls))
    for call, seen in zip(eager, profiled, strict=False):
        operands = seen.operands or call.operands
        if (call.operation, call.backward, call.operands) != (seen.operation, seen.backward, operands):
            return f"the dispatch mode saw {_describe(call)} where the profiler saw {_describe(seen)}"
    if len(eager) != len(profiled):
        return f"the dispatch mode saw {len(eager)} matrix operations and the profiler {len(profiled)}"
    in_graphs, ran = (
        Counter((call.backward, _dtypes(call)) for call in own if call.compiled) for own in (calls, audit.calls)
    )
    for (backward, dtypes), count in ran.items():
        if count > (expected := in_graphs[backward, dtypes]):
            phase = "backward" if backward else "forward"
            return f"compiled {phase} ran {count} products of {dtypes} and its graphs have {expected}"
    return ""


def _dtypes(call: Call) -> str:
    return " and ".join(sorted({dtype for dtype, _ in call.operands}))


def _describe(call: Call) -> str:
    shapes = " x ".join(f"{dtype}{list(shape)}" for dtype, shape in call.operands)
    return f"{call.operation} of {shapes} in {'backward' if call.backward else 'forward'}"


class _Reader:
    """Reads the profiler's tree of events.

    Ranges opened in Python are matched by time: under a dispatch mode they are siblings of what they enclose.
    """

    def __init__(self, operations: dict[str, str], counted: Collection[str]) -> None:
        self.calls: list[tuple[int, Call]] = []
        """With the time at which each started."""
        self.listed: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.kernels = 0
        self.uncounted: Counter[tuple[str, str]] = Counter()
        self._operations = operations
        self._counted = counted
        self._probes: list[tuple[int, int]] = []
        self._optimizers: list[tuple[int, int]] = []
        self._compiled: list[tuple[int, int]] = []
        """In which compiled code ran, or the compiler did."""
        self._recalled: list[int] = []
        self._stopped: list[int] = []

    def find_ranges(self, events: Iterable[Any]) -> None:
        for event in events:
            if event.tag == _EventType.Kineto:
                continue  # the same range again, but of when the GPU worked on it
            if event.name == PROBE:
                self._probes.append((event.start_time_ns, event.end_time_ns))
            elif event.name.startswith(_COMPILED) or event.name.endswith(_COMPILING):
                self._compiled.append((event.start_time_ns, event.end_time_ns))
            elif event.name.startswith(OPTIMIZER):
                self._optimizers.append((event.start_time_ns, event.end_time_ns))
            elif event.name == RECALLED:
                self._recalled.append(event.start_time_ns)
            elif event.name == STOPPED:
                self._stopped.append(event.start_time_ns)
            self.find_ranges(event.children)

    def walk(
        self, event: Any, outermost: str = "", backward: bool = False, compiled: bool = False, operator: str = ""
    ) -> None:
        """Read an event and those within; the rest says what is around it: `outermost` of aten, `operator` of any
        namespace."""
        name = event.name
        if name.endswith(_COMPILING):
            self.kernels += self._matrix_kernels(event)
            return
        if _is_matrix_kernel(event):
            if compiled:
                self.kernels += 1
            else:
                self.uncounted[short_name(name), outermost or operator] += 1
            return
        backward = backward or name.startswith(_BACKWARD)
        if name in self._counted:
            if not compiled and not self._is_excluded(event, backward) and not self._is_recalled(event):
                call = Call(operation=name.partition("::")[2], backward=backward, operands=())
                self.calls.append((event.start_time_ns, call))
            self.kernels += self._matrix_kernels(event)
            return
        # Launches of what no operation launches, as Triton's kernels or a graph, belong to no range in the tree.
        launched = event.tag == _EventType.Kineto and not outermost and _within(event, self._compiled)
        compiled = compiled or launched or name.startswith(_COMPILED)
        operation = name.removeprefix("aten::") if name.startswith("aten::") else ""
        operator = operator or (name if _OPERATOR.fullmatch(name) else "")
        if operation and not outermost:
            outermost = operation
            if operation in self._operations and not (backward or compiled or self._is_excluded(event, backward)):
                self.listed[self._operations[operation], _floating(_innermost(event))] += 1
        if operation in flops.FORMULAS:
            operands = _operands(_innermost(event), flops.FORMULAS[operation][0])
            if operands:
                if not self._is_excluded(event, backward) and not self._is_recalled(event):
                    call = Call(
                        operation=operation,
                        backward=backward,
                        operands=operands,
                        functions=(_FUNCTIONS.get(outermost, outermost),),
                        compiled=compiled,
                    )
                    self.calls.append((event.start_time_ns, call))
                    self.kernels += self._matrix_kernels(event)
                return
        for child in event.children:
            self.walk(child, outermost, backward, compiled, operator)

    def _matrix_kernels(self, event: Any) -> int:
        """Those that ran for an operation, without those of the observer's own arithmetic in it."""
        return sum(
            _is_matrix_kernel(child) + self._matrix_kernels(child)
            for child in event.children
            if not _within(child, self._probes)
        )

    def _is_recalled(self, event: Any) -> bool:
        """Whether checkpointing answered it, or stopped before it: it was not dispatched again, and did not run."""
        recalled, stopped = (
            [start for start in starts if event.start_time_ns <= start <= event.end_time_ns]
            for starts in (self._recalled, self._stopped)
        )
        if stopped and not _contains(event, event.name, event.start_time_ns):
            return True
        return bool(recalled) and not _contains(event, event.name, max(recalled))

    def _is_excluded(self, event: Any, backward: bool) -> bool:
        """Whether it is the observer's or the optimizer's own arithmetic. An optimizer's closure has gradients."""
        if _within(event, self._probes):
            return True
        gradients = backward or event.extra_fields.sequence_number >= 0
        return not gradients and _within(event, self._optimizers)


def _is_matrix_kernel(event: Any) -> bool:
    """Kernels are children of the call that launched them, and that of the operation."""
    return event.tag == _EventType.Kineto and multiplies_matrices(event.name)


def _contains(event: Any, name: str, after: int) -> bool:
    """Whether an event of that name began within it after a point in time."""
    children = event.children
    return any(
        (child.name == name and child.start_time_ns >= after) or _contains(child, name, after) for child in children
    )


def _within(event: Any, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= event.start_time_ns <= end for start, end in ranges)


def _innermost(event: Any) -> Any:
    """The same operation as it finally ran: autocast and the dispatch mode each dispatch it again."""
    for child in event.children:
        if child.name == event.name:
            return _innermost(child)
    return event


def _operands(event: Any, positions: Iterable[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Empty where one has no memory: what such an operation stands for, under `vmap` or in a tensor subclass, are other
    events."""
    inputs = event.extra_fields.inputs
    matrices = _metadata([inputs[position] for position in positions if position < len(inputs)])
    if not all(map(_has_memory, matrices)):
        return ()
    return tuple((dtype_name(matrix.dtype), tuple(matrix.sizes)) for matrix in matrices)


def _floating(event: Any) -> tuple[str, ...]:
    """The floating dtypes of an operation's tensors; of one on a tensor subclass, which only wraps others, those of the
    first operation within that has any."""
    dtypes = [tensor.dtype for tensor in _metadata(event.extra_fields.inputs) if _has_memory(tensor)]
    names = tuple(dtype_name(dtype) for dtype in dtypes if dtype.is_floating_point)
    return names or next(filter(None, map(_floating, (child for child in event.children if _is_operator(child)))), ())


def _is_operator(event: Any) -> bool:
    return hasattr(event.extra_fields, "inputs")


def _metadata(values: Sequence[Any]) -> list[Any]:
    """The tensors among an event's inputs."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if hasattr(item, "storage_data_ptr")]


def _has_memory(tensor: Any) -> bool:
    """Not what a compiler traces with, and not what only wraps other tensors."""
    return bool(tensor.storage_data_ptr) or 0 in tensor.sizes
