"""Training by a static graph of Paddle's, in its older intermediate representation, which its `static.amp` rewrites.

Without a GPU that has them, Paddle takes every operation off its list and rewrites nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy
import paddle
from paddle import nn, pir_utils

from recipes.paddle_.observe import Witness
from recipes.paddle_.precision import Precision, dtype_name


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
            self._loss = nn.MSELoss()(net(inputs).astype("float32"), labels)
            self.optimizer = make_optimizer(net)
            decorated = precision.static(self.optimizer, guarded=guarded)
            decorated.minimize(self._loss)
            with paddle.static.scope_guard(self._scope):
                self._executor.run(startup)
                if precision.level in ("o2", "o3"):
                    decorated.amp_init(place, scope=self._scope)

    def step(self, inputs: numpy.ndarray, labels: numpy.ndarray) -> float:
        """Take a step on float32 arrays of shape [batch, width]; gives its loss."""
        with _static(), paddle.static.scope_guard(self._scope):
            feed = {"inputs": inputs, "labels": labels}
            (loss,) = self._executor.run(self.program, feed=feed, fetch_list=[self._loss])
        return float(numpy.ravel(loss)[0])

    def take(self) -> dict[str, numpy.ndarray]:
        return {name: numpy.array(self._variable(name)) for name in self._names()}

    def put(self, saved: Mapping[str, numpy.ndarray]) -> None:
        for name in self._names():
            self._variable(name).set(saved[name], self._place)

    def products(self) -> Iterator[tuple[bool, str, int]]:
        """The program's matrix products: whether backward, the widest dtype of its matrices, and its work."""
        block = self.program.global_block()
        for operation in block.ops:
            if not operation.type.startswith(("matmul", "mul")):
                continue
            left, right = (block.var(operation.input(name)[0]) for name in ("X", "Y"))
            dtypes = {dtype_name(each.dtype) for each in (left, right)}
            dtype = "float32" if "float32" in dtypes else dtypes.pop()
            work = 2 * left.shape[0] * left.shape[1] * right.shape[1]
            backward = operation.type.endswith("_grad")
            outputs = sum(bool(operation.output(name)) for name in ("X@GRAD", "Y@GRAD")) if backward else 1
            yield backward, dtype, outputs * work

    def unknown(self) -> Counter[str]:
        """Operations of the program that may multiply matrices and aren't counted."""
        types = Counter(each.type for each in self.program.global_block().ops)
        return Counter({name: count for name, count in types.items() if "conv" in name or "attention" in name})

    def stepped(self) -> Counter[str]:
        """What its optimizer steps, in elements by dtype."""
        block = self.program.global_block()
        found: Counter[str] = Counter()
        for operation in (each for each in block.ops if each.type == "sgd"):
            masters = "MasterParam" in operation.input_names and operation.input("MasterParam")
            (name,) = operation.input("MasterParam" if masters else "Param")
            variable = block.var(name)
            found[dtype_name(variable.dtype)] += int(numpy.prod(variable.shape))
        return found

    def parameters(self) -> Counter[str]:
        """Its parameters as they lie in its scope, in elements by dtype."""
        found: Counter[str] = Counter()
        for each in self.program.all_parameters():
            values = numpy.array(self._variable(each.name))
            found[values.dtype.name] += values.size
        return found

    def _names(self) -> list[str]:
        return [each.name for each in self.program.list_vars() if each.persistable and self._scope.find_var(each.name)]

    def _variable(self, name: str) -> Any:
        return self._scope.find_var(name).get_tensor()


class GraphWitness(Witness):
    """What the program that ran says of itself: the dtypes of its variables. There is no second witness for it."""

    def __init__(self, graph: StaticGraph, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision)
        self._graph = graph

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        yield
        calls: list[dict[str, Any]] = [
            {
                "operation": "matmul",
                "functions": ["linear"],
                "backward": backward,
                "dtype": dtype,
                "kept": False,
                "compiled": False,
                "device": self._precision.device,
                "calls": 1,
                "flops": work,
            }
            for backward, dtype, work in self._graph.products()
        ]
        float32 = any(each["dtype"] == "float32" for each in calls)
        self.reports.append(
            {
                **self._head(number),
                "calls": calls,
                "unaccounted": dict(self._graph.unknown()),
                "optimizer": dict(self._graph.stepped()),
                "parameters": [
                    {"group": "other", "dtype": dtype, "elements": count}
                    for dtype, count in self._graph.parameters().items()
                ],
                "float32": {"switches": {}, "arithmetic": self._arithmetic() if float32 else {}},
            }
        )


@contextlib.contextmanager
def _static() -> Iterator[None]:
    """Static mode in the older representation, and back to eager mode."""
    with pir_utils.OldIrGuard():
        paddle.enable_static()
        try:
            yield
        finally:
            paddle.disable_static()
