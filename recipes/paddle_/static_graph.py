"""Training by a static graph of Paddle's, in its older intermediate representation, which its `static.amp` rewrites.

Without a GPU that has them, Paddle takes every operation off its list and rewrites nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy
import paddle
from paddle import nn, pir_utils
from paddle.base.layer_helper import LayerHelper

from recipes.paddle_.observe.observer import Witness
from recipes.paddle_.precision.base import Precision, StepOutcome, dtype_name
from recipes.precision.observation import Guard
from recipes.precision.operations import in_paddle

GUARD = "__use_fp16__"
"""What `fp16_guard` puts into the scope that an operation is named in."""


def guard(wanted: bool) -> AbstractContextManager[Any]:
    """`fp16_guard` where a static graph is being built and it is wanted; nothing elsewhere."""
    if wanted and not paddle.in_dynamic_mode():
        found: AbstractContextManager[Any] = paddle.static.amp.fp16_guard()
        return found
    return contextlib.nullcontext()


class StaticGraph:
    """A program that takes one optimizer step on a batch, and the scope that holds its variables.

    `recipes.paddle_.state.Held` as well: its persistable variables are its state.
    """

    def __init__(
        self,
        *,
        make: Callable[[], nn.Layer],
        make_optimizer: Callable[[nn.Layer], Any],
        precision: Precision,
        shape: tuple[int, int],
        guarded: bool,
        kind: str,
        seed: int,
    ) -> None:
        place = paddle.CUDAPlace(0) if kind == "cuda" else paddle.CPUPlace()
        self._scope = paddle.static.Scope()
        self._place = place
        self._precision = precision
        self._guarded = guarded
        with contextlib.ExitStack() as stack:
            stack.enter_context(_static())
            self.program, startup = paddle.static.Program(), paddle.static.Program()
            startup.random_seed = seed % 2**31
            self._executor = paddle.static.Executor(place)
            stack.enter_context(paddle.static.program_guard(self.program, startup))
            stack.enter_context(paddle.utils.unique_name.guard())
            inputs = paddle.static.data("inputs", list(shape), "float32")
            labels = paddle.static.data("labels", list(shape), "float32")
            net = make()
            with guard(not guarded):
                found = net(inputs)
            self._loss = nn.MSELoss()(found.astype("float32"), labels)  # outside of the guard, where all is float32
            self.optimizer = make_optimizer(net)
            decorated = precision.static(self.optimizer)
            with _any_of_variables():
                decorated.minimize(self._loss)
            self._overflows = [
                name for each in self._operations("check_finite") for name in each.output("FoundInfinite")
            ]
            if self._overflows:
                self._scale_name = decorated.get_loss_scaling().name
                precision.scaled_by_graph(lambda: float(numpy.ravel(self._value(self._scale_name))[0]))
            with paddle.static.scope_guard(self._scope):
                self._executor.run(startup)
                if precision.level in ("o2", "o3"):
                    decorated.amp_init(place, scope=self._scope)

    def step(self, inputs: numpy.ndarray, labels: numpy.ndarray) -> tuple[float, StepOutcome]:
        """Take a step on float32 arrays of shape [batch, width]; gives its loss and what became of it."""
        scale = self._precision.scale if self._overflows else None
        with _static(), paddle.static.scope_guard(self._scope):
            feed = {"inputs": inputs, "labels": labels}
            fetched = self._executor.run(self.program, feed=feed, fetch_list=[self._loss, *self._overflows])
        loss, *overflows = (numpy.ravel(each)[0] for each in fetched)
        return float(loss), self._precision.outcome(any(map(bool, overflows)), scale)

    def take(self) -> dict[str, numpy.ndarray]:
        return {name: self._value(name) for name in self._names()}

    def put(self, saved: Mapping[str, numpy.ndarray]) -> None:
        for name in self._names():
            self._variable(name).set(saved[name], self._place)

    def products(self) -> Iterator[tuple[bool, bool, str, int]]:
        """The program's matrix products: backward or not, kept in float32 outside of the guard or not, the widest dtype
        of the matrices, and the work."""
        for operation in self._operations("matmul", "mul"):
            left, right = (self._block.var(operation.input(name)[0]) for name in ("X", "Y"))
            dtypes = {dtype_name(each.dtype) for each in (left, right)}
            dtype = "float32" if "float32" in dtypes else dtypes.pop()
            work = 2 * left.shape[0] * left.shape[1] * right.shape[1]
            backward = operation.type.endswith("_grad")
            outputs = sum(bool(operation.output(name)) for name in ("X@GRAD", "Y@GRAD")) if backward else 1
            yield backward, not self._in_guard(operation), dtype, outputs * work

    def listed(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Which of these operations, by torch's names, the program has in forward, and the dtypes that they run on."""
        found: Counter[tuple[str, str]] = Counter()
        for name in names:
            for operation in (each for each in self._block.ops if each.type in in_paddle((name,))):
                first = self._block.var(operation.input_arg_names[0])
                found[name, dtype_name(first.dtype)] += 1
        return [{"function": name, "dtypes": [dtype], "calls": times} for (name, dtype), times in found.items()]

    def unknown(self) -> Counter[str]:
        """Operations of the program that may multiply matrices and aren't counted."""
        types = Counter(each.type for each in self._block.ops)
        return Counter({name: count for name, count in types.items() if "conv" in name or "attention" in name})

    def stepped(self) -> Counter[str]:
        """What its optimizer steps, in elements by dtype."""
        found: Counter[str] = Counter()
        for operation in self._operations("sgd"):
            masters = "MasterParam" in operation.input_names and operation.input("MasterParam")
            (name,) = operation.input("MasterParam" if masters else "Param")
            variable = self._block.var(name)
            found[dtype_name(variable.dtype)] += int(numpy.prod(variable.shape))
        return found

    def parameters(self) -> Counter[tuple[str, str]]:
        """Its parameters as they lie in its scope, in elements by group and dtype; `kept` is outside of the guard."""
        kept = {
            name
            for each in self._operations("matmul", "mul", "elementwise_add")
            if not self._in_guard(each)
            for name in each.input_arg_names
        }
        found: Counter[tuple[str, str]] = Counter()
        for each in self.program.all_parameters():
            values = self._value(each.name)
            dtype = "bfloat16" if values.dtype == numpy.uint16 else values.dtype.name  # which NumPy has not
            found["kept" if each.name in kept else "other", dtype] += values.size
        return found

    @property
    def _block(self) -> Any:
        return self.program.global_block()

    def _operations(self, *types: str) -> Iterator[Any]:
        """Those whose type begins so."""
        return (each for each in self._block.ops if each.type.startswith(types))

    def _in_guard(self, operation: Any) -> bool:
        """Whether it may run in half precision: all may, where nothing is guarded."""
        return not self._guarded or (operation.has_attr("op_namescope") and GUARD in operation.attr("op_namescope"))

    def _names(self) -> list[str]:
        return [each.name for each in self.program.list_vars() if each.persistable and self._scope.find_var(each.name)]

    def _value(self, name: str) -> numpy.ndarray:
        return numpy.array(self._variable(name))

    def _variable(self, name: str) -> Any:
        return self._scope.find_var(name).get_tensor()


class GraphWitness(Witness):
    """What the program that ran says of itself: the dtypes of its variables. There is no second witness for it."""

    def __init__(self, graph: StaticGraph, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision)
        self._graph = graph

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        yield
        guard = Guard()
        report: dict[str, Any] = {}
        with guard():
            report = self._of_graph()
        self._leave(number, evaluation, report, guard)

    def _of_graph(self) -> dict[str, Any]:
        calls: list[dict[str, Any]] = [
            {
                "operation": "matmul",
                "functions": ["matmul"],
                "backward": backward,
                "dtype": dtype,
                "kept": kept,
                "compiled": False,
                "device": self._precision.device,
                "calls": 1,
                "flops": work,
            }
            for backward, kept, dtype, work in self._graph.products()
        ]
        float32 = any(each["dtype"] == "float32" for each in calls)
        return {
            "calls": calls,
            "listed": self._graph.listed((*self._precision.allow, *self._precision.deny)),
            "unaccounted": dict(self._graph.unknown()),
            "optimizer": dict(self._graph.stepped()),
            "parameters": [
                {"group": group, "dtype": dtype, "elements": count}
                for (group, dtype), count in self._graph.parameters().items()
            ],
            "float32": self._float32() if float32 else {"switches": {}, "arithmetic": {}},
        }


@contextlib.contextmanager
def _any_of_variables() -> Iterator[None]:
    """A `paddle.any` that takes what the older representation holds. That of 3.3 doesn't, and Paddle's own loss scaling
    calls it where gradients are of two dtypes, as they are under `fp16_guard`."""
    original = paddle.any

    def any_of(tensor: Any) -> Any:
        helper = LayerHelper("any")
        found = helper.create_variable_for_type_inference("bool")
        helper.append_op(
            type="reduce_any", inputs={"X": tensor}, outputs={"Out": found}, attrs={"dim": [0], "reduce_all": True}
        )
        return found

    paddle.any = any_of
    try:
        yield
    finally:
        paddle.any = original


@contextlib.contextmanager
def _static() -> Iterator[None]:
    """Static mode in the older representation, and back to eager mode."""
    with pir_utils.OldIrGuard():
        paddle.enable_static()
        try:
            yield
        finally:
            paddle.disable_static()
