"""Observes every operation that torch dispatches, below autocast, where the dtypes are those that run."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from amp_launcher.around.replaced import replaced
from amp_launcher.precision.observation import Guard
from amp_launcher.torch.observe import flops, operators
from amp_launcher.torch.observe.calls import Call, dtype_name, tensors
from amp_launcher.torch.observe.composites import parts_of
from amp_launcher.torch.observe.evaluation import Evaluations, Operands
from amp_launcher.torch.observe.lineage import Lineage
from amp_launcher.torch.observe.memory import NO_SOURCES, Memory, Origin
from amp_launcher.torch.observe.modules import Modules, Running, optimizer_frames, weights_of
from amp_launcher.torch.observe.operators import (
    COMPOSITE,
    FOLLOWED,
    GATHERING,
    LIGHT,
    MATRIX,
    REDUCTION,
    UNKNOWN,
)
from amp_launcher.torch.observe.outside import Writers
from amp_launcher.torch.observe.profiler_audit import PROBE
from amp_launcher.torch.observe.roles import Roles, has_gradients, in_backward

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class DispatchObserver(TorchDispatchMode):
    """Records matrix products and convolutions, forward and backward apart, without the optimizer's own.

    `on_float32(device)` is called before each operation that multiplies float32, under the same settings.
    """

    supports_higher_order_operators = True

    def __init__(
        self, modules: Modules, on_float32: Callable[[torch.device], None], guard: Guard | None = None
    ) -> None:
        super().__init__()
        self.guard = guard or Guard()
        self.calls: list[Call] = []
        self.operations = 0
        """Operations that were dispatched."""
        self.unaccounted: Counter[str] = Counter()
        """Operations that may have multiplied matrices and couldn't be counted -> times."""
        self.counted: set[str] = set()
        """Full names of the operators that were counted."""
        self.apart: Counter[str] = Counter()
        """Products that no level is for -> times."""
        self.old = 0
        """Products of training with copies of weights that had been written since."""
        self.reduced: Counter[str] = Counter()
        """dtype -> elements of gradients that were summed over ranks in it."""
        self.gathered: Counter[str] = Counter()
        """dtype -> elements of parameters that were gathered from all ranks in it."""
        memory = Memory()
        lineage = Lineage(memory)
        self.roles = Roles(modules, lineage)
        self.evaluations = Evaluations(memory)
        self.writers = Writers(
            memory, lineage, self.evaluations, self.guard, lambda: self._pauses > 0 or self.in_optimizer()
        )
        self.kept_ran: set[torch.nn.Module] = set()
        """The modules kept in float32 that ran."""
        self._fakes = False
        """Everything is computed in fake tensors."""
        self.rests = False
        """No further operation is observed."""
        self._pauses = 0
        self._modules = modules
        self._on_float32 = on_float32
        self._kinds: dict[Any, str] = {}
        self._adapters = modules.has_adapters()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True keeps compiled code compiled: otherwise torch runs it eagerly, and another program is observed."""
        return True

    def __enter__(self) -> Any:
        if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            _add_rules()
        self._fakes = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types and not self._fakes:
            return func(*args, **kwargs)  # another's, for shapes alone, as DTensor computes them
        for kind in types:
            if kind not in _PLAIN and kind is not FakeTensor:
                return NotImplemented  # the subclass runs its own parts, which come here one by one
        if self.rests or self.guard.problems:  # with a problem the step is unknown already
            return _computed(func, args, kwargs)
        run, after = func, None
        with self.guard():
            run, after = self._before(func, args, kwargs)
        if run is not func:
            with self, self.writers.within(func, args, kwargs):
                return run(*args, **kwargs)
        try:
            out = _computed(func, args, kwargs)
        except Exception:
            with self.guard():
                if after is not None:  # the profiler has seen it begin
                    after(args, kwargs, None)
            raise
        with self.guard():
            self._follow(func, args, kwargs, out)
            if after is not None:
                after(args, kwargs, out)
        return out

    def _before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Callable[[Any, Any, Any], None] | None]:
        """The function to run for an operation, itself or its decomposition, and the one to call afterwards."""
        self.operations += 1
        if self.writers.exports and not self._pauses:
            self.writers.runs(args, kwargs)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = operators.kind_of(func)
        if self._modules.kept and not self._pauses and not in_backward():
            self._is_kept(self._modules.running())
        if kind == LIGHT or self._pauses or self.in_optimizer():
            return func, None
        if kind == FOLLOWED:
            return func, self._followed(func)
        if kind == UNKNOWN:
            if not operators.takes_no_tensor(func, args, kwargs):
                self.unaccounted[str(func)] += 1
            return func, None
        if kind in (REDUCTION, GATHERING):
            self._record_collective(func, args, kind)
            return func, None
        if kind == COMPOSITE:
            return parts_of(func), None
        return func, self._matrices(func, args, kwargs)

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Follow what was computed without gradients or written by nothing seen, and notice where training uses it."""
        if self._pauses:
            return
        backward = in_backward()
        if backward or has_gradients():
            self.evaluations.close()
        multiplies = self._kinds[func] == MATRIX
        self.writers.ran(func, args, kwargs, out, backward=backward, multiplies=multiplies, steps=self.in_optimizer)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For compiled code, which is read from its own graph."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def unscaled(self) -> bool:
        """Whether gradients were divided by a loss scale, as `GradScaler` does it."""
        return torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default in self._kinds

    def in_optimizer(self) -> bool:
        """Whether the optimizer's own arithmetic is running. Its closure's forward and backward are not part of it."""
        return not torch.is_grad_enabled() and not in_backward() and bool(optimizer_frames())

    def _record_collective(self, func: Any, args: Any, kind: str) -> None:
        """DDP and FSDP reduce gradients, and FSDP gathers parameters, in flat buffers; tensors of more dimensions are a
        model's own activations."""
        counts = self.reduced if kind == REDUCTION else self.gathered
        for buffer in tensors(args[1:2] if "reduce_scatter_base" in func._schema.name else args[:1]):
            if buffer.dim() == 1 and buffer.is_floating_point():
                counts[dtype_name(buffer.dtype)] += buffer.numel()

    def _followed(self, func: Any) -> Callable[[Any, Any, Any], None]:
        name = func._schema.name.partition("::")[2]
        return lambda args, kwargs, out: self.roles.lineage.follow(name, args, out)

    def _matrices(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any, Any, Any], None] | None:
        """A function that records a matrix operation after it ran; None where its work can't be counted."""
        name = func._schema.name.partition("::")[2]
        if dtype := operators.sparse(args):
            self.apart[f"{name} of sparse matrices in {dtype}"] += 1
            return None
        product = operators.product_of(func, args, kwargs)
        if product is None or not product.matrices:
            self.unaccounted[str(func)] += 1
            return None
        matrices = product.matrices
        self.counted.add(func._schema.name)
        operands = tuple((dtype_name(matrix.dtype), tuple(matrix.shape)) for matrix in matrices)
        if any(dtype == "float32" for dtype, _ in operands):
            self._on_float32(matrices[0].device)
        backward, running = in_backward(), self._modules.running()
        use, origin = self.roles.record(matrices, len(self.calls), running)
        kept = self._is_kept(running, backward, origin)
        origins = [self.roles.lineage.origin(matrix) for matrix in matrices]
        weights = [(origin.memory, origin.parameter) for origin in origins if origin.parameter is not None]
        trains = backward or (has_gradients() and any(matrix.requires_grad for matrix in matrices))
        if backward:
            self.evaluations.use_call(origin)
            if origin >= 0 and self._adapters:
                kept = self.calls[origin].kept
        elif trains:
            self.old += any(self.roles.lineage.is_old(matrix) for matrix in matrices)
            if self._adapters and any(weight.dtype == torch.float32 for _, weight in weights):
                kept = any(dtype == "float32" for dtype, _ in operands)
            self.evaluations.stepped.update(memory for memory, weight in weights if weight.requires_grad)

        operands_of = None if trains else self._without_gradients(matrices, origins, running)

        functions = _gradient_of() if backward else ()

        def record_call(args: Any, kwargs: Any, out: Any) -> None:
            call = Call(
                operation=name,
                backward=backward,
                operands=operands,
                functions=functions,
                flops=0 if out is None else product.work(out),
                device=matrices[0].device.type,
                kept=kept,
                origin=origin if backward else -1,
                use=use,
                scales=flops.scales(name, args),
            )
            if operands_of is not None:
                self.evaluations.add(len(self.calls), tensors([out]), operands_of)
            self.calls.append(call)

        return record_call

    def _without_gradients(
        self, matrices: Sequence[torch.Tensor], origins: Sequence[Origin], running: Running
    ) -> Operands:
        records = [self.roles.lineage.record(matrix) for matrix in matrices]
        weights = frozenset(origin.memory for origin in origins if origin.parameter is not None)
        in_model = running.module is not None and next(weights_of(running.module), None) is not None
        trained = any(matrix.requires_grad for matrix in matrices) or any(record.trained for record in records)
        plain = not weights and not in_model and not trained
        return Operands(
            weights=weights,
            others=frozenset(origin.memory for origin in origins) if plain else None,
            sources=NO_SOURCES.union(*(record.sources for record in records)),
            vector=any(matrix.dim() == 1 for matrix in matrices),
            gradients=not in_model and any(record.gradient for record in records),
        )

    def _is_kept(self, running: Running, backward: bool = False, origin: int = -1) -> bool | None:
        """Whether a module of `amp.keep_fp32` is running, or ran the origin of this gradient; None where that isn't
        known."""
        if not self._modules.kept:
            return False
        if backward and origin >= 0:
            return self.calls[origin].kept
        if running.kept is not None:
            self.kept_ran.add(running.kept)
            return True
        return None if backward or running.merged else False


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives. For `super().__new__(cls, data)` in a class of tensors torch makes an alias of `data`,
    and raises where a mode gives it a plain tensor instead of one of that class."""
    out = func(*args, **kwargs)
    if func is _ALIAS and type(out) is torch.Tensor and (made := _made()) is not None:
        return out.as_subclass(made)
    return out


def _made() -> Any:
    """The class of tensors whose `__new__` called the operation that the mode was called for, or None."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in _OF_THE_CALL and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    if code.co_name != "__new__" or not code.co_argcount:
        return None
    made = frame.f_locals.get(code.co_varnames[0])
    return made if isinstance(made, type) and issubclass(made, torch.Tensor) else None


_ALIAS = torch.ops.aten.alias.default
_OF_THE_CALL = (__name__, "torch._compile", "torch._dynamo.eval_frame")
"""The modules of the frames between the script's and ours."""


def _add_rules() -> None:
    """Torch 2.6 asks each operator of higher order for its rule for a mode, and raises where there is none."""
    for operator in torch._ops._higher_order_ops.values():
        operator.python_key_table.setdefault(DispatchObserver, functools.partial(_dispatched, operator))


def _dispatched(operator: Any, mode: DispatchObserver, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)


_GRADIENTS = {"EuclideanDistBackward0": ("cdist",), "LinalgMatrixExpBackward0": ("matrix_exp",)}
"""Autograd's name of a gradient that has matrix products of its own -> the function that it is of."""


def _gradient_of() -> tuple[str, ...]:
    node = torch._C._current_autograd_node()
    return () if node is None else _GRADIENTS.get(node.name(), ())


@contextlib.contextmanager
def beneath(mode: TorchDispatchMode) -> Iterator[None]:
    """Enter a mode below those of the script, which end in their own order: a mode takes the newest off the stack."""
    with _lifted(None):
        mode.__enter__()
    try:
        yield
    finally:
        with _lifted(mode):
            mode.__exit__(None, None, None)


@contextlib.contextmanager
def left_out_of_traces(mode: TorchDispatchMode) -> Iterator[None]:
    """While open, `torch.jit.trace` records without this mode: under one it can't record some layers, as a batch norm,
    and raises. What it computes is no training."""
    with contextlib.ExitStack() as stack:
        for name in ("_trace_impl", "trace_module"):
            stack.enter_context(replaced(torch.jit._trace, name, _without(mode, getattr(torch.jit._trace, name))))
        stack.enter_context(replaced(torch.jit, "trace_module", torch.jit._trace.trace_module))
        yield


def _without(mode: TorchDispatchMode, trace: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if mode not in _get_current_dispatch_mode_stack():
            return trace(*args, **kwargs)
        with _lifted(mode):
            _pop_mode()
        try:
            with torch.profiler.record_function(PROBE):
                return trace(*args, **kwargs)
        finally:
            with _lifted(None):
                _push_mode(mode)

    return traced


@contextlib.contextmanager
def _lifted(mode: TorchDispatchMode | None) -> Iterator[None]:
    """Without the dispatch modes above this one, or without any."""
    above = []
    while (stack := _get_current_dispatch_mode_stack()) and stack[-1] is not mode:
        above.append(_pop_mode())
    try:
        yield
    finally:
        for other in reversed(above):
            _push_mode(other)


def missing(compiles: bool) -> str:
    """The private name that this torch lacks and observation needs, or an empty string.

    `compiles` says that compiled code will be observed: without that name it would run eagerly instead.
    """
    name = "ignore_compile_internals"
    return name if compiles and not hasattr(TorchDispatchMode, name) else ""
