"""Observes every operation that torch dispatches, below autocast, where the dtypes are those that run."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from recipes.precision.observation import Guard
from recipes.torch_.observe import flops
from recipes.torch_.observe.calls import Call, ProductUse, dtype_name, tensors
from recipes.torch_.observe.lineage import SAME_DATA
from recipes.torch_.observe.modules import Modules
from recipes.torch_.observe.roles import Roles

LIGHT, FOLLOWED, COMPOSITE, MATRIX, UNKNOWN = "light", "followed", "composite", "matrix", "unknown"
REDUCTION, GATHERING = "reduction", "gathering"
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


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
        self.unaccounted: Counter[str] = Counter()
        """Operations that may have multiplied matrices and couldn't be counted -> times."""
        self.reduced: Counter[str] = Counter()
        """dtype -> elements of gradients that were summed over ranks in it."""
        self.gathered: Counter[str] = Counter()
        """dtype -> elements of parameters that were gathered from all ranks in it."""
        self.roles = Roles(modules)
        self.optimizer_steps = 0
        """Above zero while an optimizer steps."""
        self.kept_ran: set[torch.nn.Module] = set()
        """The modules kept in float32 that ran."""
        self._pauses = 0
        self._kept = {id(module): module for module in modules.kept}
        self._on_float32 = on_float32
        self._forward_call: dict[int, int] = {}  # autograd node -> index of the call that made it
        self._kinds: dict[Any, str] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True keeps compiled code compiled: otherwise torch runs it eagerly, and another program is observed."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # the subclass runs its own parts, which come here one by one
        run, after = func, None
        with self.guard():
            run, after = self._before(func, args)
        if run is not func:
            with self:
                return run(*args, **kwargs)
        out = func(*args, **kwargs)
        if after is not None:
            with self.guard():
                after(args, kwargs, out)
        return out

    def _before(self, func: Any, args: Any) -> tuple[Any, Callable[[Any, Any, Any], None] | None]:
        """The function to run for an operation, itself or its decomposition, and the one to call afterwards."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if self._kept and not self._pauses and not in_backward():
            self._running_kept()
        if kind == LIGHT or self._pauses or self.in_optimizer():
            return func, None
        if kind == FOLLOWED:
            return func, self._followed(func)
        if kind == UNKNOWN:
            self.unaccounted[str(func)] += 1
            return func, None
        if kind in (REDUCTION, GATHERING):
            self._record_collective(func, args, kind)
            return func, None
        if kind == COMPOSITE:
            return _parts(func), None
        return func, self._matrices(func, args)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For compiled code, which is read from its own graph."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def in_optimizer(self) -> bool:
        """Whether the optimizer's own arithmetic is running. Its closure's forward and backward are not part of it."""
        return bool(self.optimizer_steps) and not torch.is_grad_enabled() and not in_backward()

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

    def _matrices(self, func: Any, args: Any) -> Callable[[Any, Any, Any], None] | None:
        """A function that records a matrix operation after it ran; None where its work can't be counted."""
        name = func._schema.name.partition("::")[2]
        if name not in flops.FORMULAS:
            self.unaccounted[f"{func} (no formula)"] += 1
            return None
        positions, formula = flops.FORMULAS[name]
        matrices = tensors([args[position] for position in positions])
        operands = tuple((dtype_name(matrix.dtype), tuple(matrix.shape)) for matrix in matrices)
        if any(dtype == "float32" for dtype, _ in operands):
            self._on_float32(matrices[0].device)
        backward = in_backward()
        use = self._use(matrices, backward)

        def record_call(args: Any, kwargs: Any, out: Any) -> None:
            if formula is not None:
                produced = tensors([out] if isinstance(out, torch.Tensor) else out)
                count = formula(args, produced[0].shape if produced else ())
            else:
                count = int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=out))
            origin = self._origin(backward)
            call = Call(
                operation=name,
                backward=backward,
                operands=operands,
                flops=count,
                device=matrices[0].device.type,
                kept=self._is_kept(backward, origin),
                origin=origin if backward else -1,
                use=use,
            )
            self.calls.append(call)

        return record_call

    def _use(self, matrices: Sequence[torch.Tensor], backward: bool) -> ProductUse:
        newest = torch.autograd._get_sequence_nr() - 1
        if not backward:
            return self.roles.forward(matrices, newest)
        node = torch._C._current_autograd_node()
        return self.roles.backward(matrices, -1 if node is None else node._sequence_nr(), newest)

    def _origin(self, backward: bool) -> int:
        """Index of the forward call that the call about to be recorded belongs to.

        Autograd numbers its nodes. The node of a call exists before the call is dispatched, so it has the newest
        number; in backward the node being run has the number that it got then.
        """
        index = len(self.calls)
        newest = torch.autograd._get_sequence_nr() - 1
        if not backward:
            self._forward_call.setdefault(newest, index)
            return index
        node = torch._C._current_autograd_node()
        origin = self._forward_call.get(node._sequence_nr(), -1) if node is not None else -1
        if torch.is_grad_enabled():  # a second backward will go through this one
            self._forward_call.setdefault(newest, origin)
        return origin

    def _is_kept(self, backward: bool, origin: int) -> bool | None:
        """Whether a module of `amp.keep_fp32` is running: on the Python stack, or the origin of this gradient.

        The modules themselves are left as they are, without hooks.
        """
        if not self._kept:
            return False
        if backward and origin >= 0:
            return self.calls[origin].kept
        running = self._running_kept()
        return None if backward and running is False else running

    def _running_kept(self) -> bool | None:
        """Whether a module of `amp.keep_fp32` is on the Python stack; None where that isn't known."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "_call_impl" and (module := self._kept.get(id(frame.f_locals.get("self")))):
                self.kept_ran.add(module)
                return True
            if frame.f_code.co_filename.startswith("<eval_with_key>"):
                return None  # code that torch.compile made of several modules
            frame = frame.f_back
        return False


def missing(compiles: bool) -> str:
    """The private name that this torch lacks and observation needs, or an empty string.

    `compiles` says that compiled code will be observed: without that name it would run eagerly instead.
    """
    name = "ignore_compile_internals"
    return name if compiles and not hasattr(TorchDispatchMode, name) else ""


def _parts(func: Any) -> Any:
    """The function that runs an operation's decomposition."""
    if isinstance(
        func, HigherOrderOperator
    ):  # flex attention, for example, upcasts: torch's formula for the whole of it would miss that
        return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return func.decompose


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _has_kernel(func: Any, key: str) -> bool:
    """Whether the operation has a kernel of its own there. SiLU's gradient has one for each device, and a composite
    one that rounds otherwise; in its place it would change what is observed."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _kind(func: Any) -> str:
    if isinstance(func, HigherOrderOperator):
        return COMPOSITE if func in flop_registry else UNKNOWN
    if func._schema.name.startswith("prim::"):
        return LIGHT  # questions to a tensor, such as its device, which the dispatcher doesn't have
    if _has_kernel(func, "CompositeImplicitAutograd") and not (_has_kernel(func, "CPU") or _has_kernel(func, "CUDA")):
        return COMPOSITE  # arrives undecomposed in inference mode only
    namespace, _, name = func._schema.name.partition("::")
    if namespace not in flops.KNOWN_NAMESPACES:
        return UNKNOWN
    if "c10d" in namespace and "reduce" in name:
        return REDUCTION
    if name == "_allgather_base_":
        return GATHERING
    if flops.is_matrix_operation(name):
        return MATRIX
    return FOLLOWED if name in SAME_DATA else LIGHT
