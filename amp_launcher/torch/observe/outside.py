"""Which tensors that training uses were written by nothing that was seen, as by NumPy or a raw kernel.

Each tensor that training uses was written by an operation that was seen, or is given: older than the step, or data.
What is neither:

- memory that was allocated, and read before an operation that was seen wrote it, but for int64: indices and lengths,
  which torch itself writes without an operation, as those that `pad_packed_sequence` returns;
- memory that left torch, as an array of NumPy, and was written there, after values of training left it or in an
  autograd function;
- what an autograd function returns, or a gradient in backward, that no operation wrote;
- a tensor from outside torch, after values of training have left torch in the same forward or the same backward.

Data needs no gradient, and nothing that training computed for it has left torch before. Values of one element don't
count: losses are printed, and learning rates come from outside.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import function

from amp_launcher.around.replaced import replaced
from amp_launcher.precision.observation import Guard
from amp_launcher.torch.observe.calls import tensors
from amp_launcher.torch.observe.evaluation import Evaluations
from amp_launcher.torch.observe.lineage import Lineage
from amp_launcher.torch.observe.memory import (
    NO_SOURCES,
    Export,
    Memory,
    Outside,
    Record,
    Sources,
    State,
    memory_of,
    stamp_of,
)
from amp_launcher.torch.observe.operators import HOLDING_PRODUCTS
from amp_launcher.torch.observe.roles import has_gradients
from amp_launcher.torch.observe.traits import Traits
from amp_launcher.torch.uncompiled import is_traced
from amp_launcher.watchdog import own_frame

_ALIASES = ("numpy", "data_ptr", "__dlpack__")
"""Methods that give out a tensor's memory."""
_EXPORTS = ("tolist", *_ALIASES)
"""Methods by which values leave torch without an operation."""


class Writers:
    """Follows who wrote the memory of a step's tensors, and what training uses of it."""

    def __init__(
        self, memory: Memory, lineage: Lineage, evaluations: Evaluations, guard: Guard, ignores: Callable[[], bool]
    ) -> None:
        """`ignores` tells whether compiled code or an optimizer's step runs, which may give out what they like."""
        self.exports = False
        """Whether memory has left torch."""
        self._ignores = ignores
        self.memory = memory
        self._lineage = lineage
        self._evaluations = evaluations
        self._guard = guard
        self._first = 0
        """Autograd's first number in this step."""
        self._left = False
        """Whether values of training have left torch."""
        self._pass = 1
        """Number of the forward or backward that runs."""
        self._was_backward = False
        self.backwards = 0
        """Those that were followed by something else."""
        self._traits: dict[Any, Traits] = {}
        self._of_kernel: set[Any] | None = None
        """The memory that a kernel of torch's was given whose operations are seen one by one."""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what leaves torch, while open."""
        self._first = torch.autograd._get_sequence_nr()
        with contextlib.ExitStack() as stack:
            for name in _EXPORTS:
                stack.enter_context(replaced(torch.Tensor, name, self._noticing(name, getattr(torch.Tensor, name))))
            yield

    def unseen(self) -> dict[str, int]:
        """What training used that nothing seen wrote -> tensors."""
        return dict(Counter(source.name for source in self._evaluations.used if isinstance(source, Outside)))

    def used(self) -> int:
        """The tensors that training used."""
        return sum(record.used for record in self.memory)

    def forget(self) -> None:
        """An optimizer stepped, or a backward ended: what comes from outside now is for the next forward."""
        self._left = False
        self._pass += 1

    def gradient(self, tensor: torch.Tensor) -> None:
        """An optimizer is about to use this gradient."""
        record = self.memory.known(tensor) if tensor.layout is torch.strided else None
        if record is not None and record.export is not None and self._was_written(tensor, record):
            self._evaluations.use(frozenset({Outside("a gradient that was written outside torch")}))
        if record is not None and record.arrived is not None and record.state is State.GIVEN:
            self._evaluations.use(frozenset({Outside("a gradient from outside torch")}))

    def runs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An operation or compiled code is about to run."""
        for tensor in _dense(tensors([*args, *kwargs.values()])) if self.exports else ():
            record = self.memory.known(tensor)
            if record is not None and record.export is not None and record.state is not State.ALLOCATED:
                function = record.export.function or _running_function()
                if (function or self._left or tensor.requires_grad) and self._was_written(tensor, record):
                    of = f" of {function}" if function else ""
                    _make_outside(record, f"memory{of} that was written outside torch")

    @contextlib.contextmanager
    def within(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """The operations of a kernel run, which may have constants of its own, such as the coefficients of a series."""
        before = self._of_kernel
        if getattr(func, "_schema", None) is not None and func._schema.name in HOLDING_PRODUCTS:
            with self._guard():
                self._of_kernel = {memory_of(tensor) for tensor in _dense(tensors([*args, *kwargs.values()]))}
        try:
            yield
        finally:
            self._of_kernel = before

    def ran(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        *,
        backward: bool,
        multiplies: bool,
        steps: Callable[[], bool],
    ) -> None:
        """An operation ran, or compiled code for None. `multiplies` is of one that multiplies matrices, `steps` tells
        whether an optimizer's step runs."""
        if self._was_backward and not backward:
            self.backwards += 1
            self.forget()
        self._was_backward = backward
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = Traits(func)
        gradients, trains, trained = has_gradients(), backward, 0
        records, written, known, sources, mixed = self.memory.records, [], {}, NO_SOURCES, NO_SOURCES
        gradient, weights = backward, set()
        if traits.sends or traits.keywords:
            written = [memory_of(tensor) for tensor in _dense(traits.written(args, kwargs))]
        if self.exports:
            self._stamp(args if func is None else traits.written(args, kwargs))
        for tensor in _dense(tensors([*args, *kwargs.values()])):
            key = memory_of(tensor)
            record = records.get(key)
            if record is None:
                record = self.memory.record(tensor)
                if key not in written and not traits.sends and not traits.arrives:
                    self._first_seen(tensor, record, backward, gradients)
            if record.state is State.ALLOCATED:
                if traits.reads and (key not in written or traits.updates):
                    self._read_unwritten(tensor, record, traits, kwargs, steps)
            elif record.state is State.GIVEN:
                self._given(tensor, record)
            trains = trains or (gradients and tensor.requires_grad)
            trained = max(trained, record.trained)
            gradient = gradient or record.gradient
            if tensor.requires_grad:
                weights.add(key)
            if record.sources:
                sources |= record.sources
                # Of an autograd function, whose forward has none; what is recorded by `torch.jit.trace` has some.
                if tensor.grad_fn is not None and not backward and not is_traced():
                    self._evaluations.train(record.sources)
            if record.mixed:
                mixed |= record.mixed
            known[key] = record
        if trains:
            for record in known.values():
                record.used = True
        if (sources or mixed) and (trains or steps()):
            sources, mixed = NO_SOURCES, self._used(sources, mixed, backward, multiplies, trains)
        trained = self._pass if trains else trained
        for key in written:
            record = known[key]
            record.writes += 1
            record.state, record.trained, record.sources = traits.leaves, trained, record.sources | sources
            record.mixed |= mixed
            record.gradient |= gradient and key not in weights
        for tensor in _dense(tensors([out])):
            if memory_of(tensor) not in known:
                record = self.memory.add(tensor, Record(traits.leaves, sources, trained))
                record.mixed, record.gradient = mixed, gradient
        if traits.arrives:
            self._arrives(args[0], backward)

    def _used(self, sources: Sources, mixed: Sources, backward: bool, multiplies: bool, trains: bool) -> Sources:
        """Training used these; returns those that are in what it computed."""
        outside = frozenset(source for source in sources if isinstance(source, Outside))
        self._evaluations.use(outside)
        if not trains:
            self._evaluations.train(sources)
        if not trains or (multiplies and not backward):
            self._evaluations.use(sources | mixed)
        self._evaluations.in_loss |= sources
        return NO_SOURCES if backward else sources | mixed

    def _noticing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leave(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with self._guard():
                if type(tensor) in (torch.Tensor, nn.Parameter) and _has_values(tensor) and not self._ignores():
                    self._leaves(tensor)
                    if name in _ALIASES and tensor.layout is torch.strided:
                        self._gives_out(tensor)
            return original(tensor, *args, **kwargs)

        return leave

    def _gives_out(self, tensor: torch.Tensor) -> None:
        record = self.memory.record(tensor)
        if record.export is None:
            record.export, self.exports = Export(_running_function(), stamp_of(tensor)), True

    def _was_written(self, tensor: torch.Tensor, record: Record) -> bool:
        """Whether memory that left torch has changed, or was nothing but one number, as workspaces are."""
        assert record.export is not None
        return record.state is State.FILLED or stamp_of(tensor) != record.export.stamp

    def _stamp(self, written: Sequence[Any]) -> None:
        for tensor in _dense(tensors(written)):
            record = self.memory.known(tensor)
            if record is not None and record.export is not None:
                record.export.stamp = stamp_of(tensor)

    def _leaves(self, tensor: torch.Tensor) -> None:
        if not self._left:
            record = self.memory.known(tensor)
            if record is not None and record.trained == self._pass:
                self._left = True
            elif self._lineage.origin(tensor).parameter is not None:
                self._left = _is_within_module()  # else weights are logged

    def _arrives(self, tensor: torch.Tensor, backward: bool) -> None:
        """From NumPy or from Python's numbers."""
        record = self.memory.known(tensor)
        if record is None or record.state is not State.GIVEN:
            return
        record.arrived = torch.autograd._get_sequence_nr()
        if self._left and _has_values(tensor):
            _make_outside(record, f"a tensor from outside torch in {_running_function() or _place(backward)}")

    def _first_seen(self, tensor: torch.Tensor, record: Record, backward: bool, gradients: bool) -> None:
        """Memory that is older than the step, or that something unseen made."""
        if self._of_kernel is not None and memory_of(tensor) not in self._of_kernel:
            return
        if tensor.requires_grad or isinstance(tensor, nn.Parameter) or not _has_values(tensor):
            return
        if self._left and not gradients and (name := _running_function()):
            _make_outside(record, f"what {name} used")
        elif backward:
            node = torch._C._current_autograd_node()
            if node is not None and not isinstance(node, function.BackwardCFunction) and self._is_new(node):
                _make_outside(record, f"a gradient that {node.name()} was given")

    def _is_new(self, node: Any) -> bool:
        return bool(node._sequence_nr() >= self._first)

    def _given(self, tensor: torch.Tensor, record: Record) -> None:
        """The output of an autograd function comes from no operation if it arrived since the function was called."""
        node = tensor.grad_fn
        if node is None:
            if tensor.requires_grad:
                record.state = State.WRITTEN  # a weight: what has its memory and a gradient is a view of it
        elif self._is_new(node) and (record.arrived is None or record.arrived > node._sequence_nr()):
            _make_outside(record, _output_of(node))
        else:
            record.state = State.WRITTEN
            self._lineage.add_older(tensor)

    def _read_unwritten(
        self,
        tensor: torch.Tensor,
        record: Record,
        traits: Traits,
        kwargs: Mapping[str, Any],
        steps: Callable[[], bool],
    ) -> None:
        if tensor.numel() and tensor.dtype != torch.int64 and kwargs.get("beta") != 0 and not steps():
            node = tensor.grad_fn
            if isinstance(node, function.BackwardCFunction):
                _make_outside(record, _output_of(node))
            else:
                _make_outside(record, f"memory that {_running_function() or traits.name} read as it was allocated")


def _make_outside(record: Record, name: str) -> None:
    record.sources |= {Outside(name)}
    record.state = State.WRITTEN


def _dense(values: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Those that have memory of their own."""
    return (tensor for tensor in values if tensor.layout is torch.strided)


def _has_values(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 1 and (tensor.is_floating_point() or tensor.is_complex())


def _output_of(node: Any) -> str:
    return f"the output of {node.name().removesuffix('Backward')}"


def _place(backward: bool) -> str:
    """`forward, at models.py:50`: the innermost line that is no library's."""
    own = own_frame(sys._getframe())
    at = f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno}"
    return f"{'backward' if backward else 'forward'}, at {at}"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _running_function() -> str:
    """The name of the autograd function whose forward or backward the caller is in; empty where it is in none."""
    for frame in _frames():
        code = frame.f_code
        if code.co_filename == function.__file__ and code.co_name == "apply":
            kind = frame.f_locals.get("cls") or frame.f_locals.get("self")
            return str(getattr(kind, "__name__", type(kind).__name__)).removesuffix("Backward")
        # From torch 2.14 on, what calls a forward is no function of Python.
        if code.co_name == "forward" and (name := _with_forward(frame)):
            return name
    return ""


def _with_forward(frame: FrameType) -> str:
    """The name of the autograd function whose forward this frame runs; empty for another one's, as a module's."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    if names and names[0] != "self" and isinstance(context := frame.f_locals.get(names[0]), function.FunctionCtx):
        return type(context).__name__.removesuffix("Backward")
    return _owner_of(frame.f_code)  # with a `setup_context` it has no context


@functools.lru_cache(maxsize=1024)
def _owner_of(code: CodeType) -> str:
    """The name of the autograd function with that forward, which has to be running; empty where there is none."""
    kinds = [function.Function]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if getattr(inspect.unwrap(kind.forward), "__code__", None) is code:
            return kind.__name__
    return ""


def _is_within_module() -> bool:
    return any(frame.f_code.co_name == "_call_impl" for frame in _frames())
