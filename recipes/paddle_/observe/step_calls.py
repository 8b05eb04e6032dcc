"""The calls of layers and optimizers in a training step in Paddle, with dtypes and FLOPs, and Paddle's own counts."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from recipes.paddle_.precision.base import dtype_name
from recipes.precision import observation
from recipes.precision.observation import Guard
from recipes.trainer.replaced import replaced

COLUMNS = ("float16", "bfloat16", "float32", "other")
"""Dtypes of the counts that Paddle keeps of each operation."""
CONVOLUTIONS = (nn.Conv1D, nn.Conv2D)
MOST_CALLS = 1000
"""Recorded products before equal ones are added up. A script may compute for hours before its first optimizer step."""


class StepCalls:
    """The calls of layers and optimizers that are recorded in a step."""

    def __init__(self, is_kept: Callable[[nn.Layer], bool], guard: Guard, device: str) -> None:
        self.calls: list[dict[str, Any]] = []
        """Products of layers, as a report has them."""
        self.stepped: Counter[str] = Counter()
        """Elements that optimizers stepped, by dtype."""
        self.inside: dict[str, Counter[str]] = {}
        """Kernels inside of layers with parameters, without those of the training loop and the loss."""
        self.called: set[int] = set()
        """Ids of the layers that were called."""
        self._is_kept = is_kept
        self._guard = guard
        self._device = device
        self._depth = 0

    def step(self, optimizer: Any) -> None:
        """Record a step that the optimizer is about to take."""
        with self._guard():
            self.stepped.update(stepped_elements(optimizer))

    @contextlib.contextmanager
    def recording(self, on_layer: Callable[[nn.Layer], None]) -> Iterator[None]:
        """Record every call of a layer in this context; `on_layer` is called with each layer before."""
        original = nn.Layer.__call__

        def call(layer: nn.Layer, *inputs: Any, **named: Any) -> Any:
            if not paddle.in_dynamic_mode():
                return original(layer, *inputs, **named)
            before: dict[str, Counter[str]] | None = None
            with self._guard():
                on_layer(layer)
                self.called.add(id(layer))
                before = kernel_counts() if not self._depth and layer.parameters() else None
            self._depth += 1
            try:
                output = original(layer, *inputs, **named)
            finally:
                self._depth -= 1
            with self._guard():
                if before is not None:
                    for name, counts in kernel_counts().items():
                        self.inside.setdefault(name, Counter()).update(counts - before.get(name, Counter()))
                if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
                    self._product(layer, next(iter((*inputs, *named.values()))), output)
            return output

        with replaced(nn.Layer, "__call__", call):
            yield

    def _product(self, layer: nn.Layer, inputs: paddle.Tensor, output: paddle.Tensor) -> None:
        operation, function, work = _work(layer, output)
        kept = self._is_kept(layer)

        def record(tensor: paddle.Tensor, products: int, backward: bool) -> None:
            self.calls.append(
                observation.call(
                    operation,
                    dtype_name(tensor.dtype),
                    products * work,
                    functions=[function],
                    backward=backward,
                    kept=kept,
                    device=self._device,
                    calls=products,
                )
            )
            if len(self.calls) > MOST_CALLS:
                self.calls = observation.merged(self.calls)

        record(output, 1, backward=False)
        if output.stop_gradient:
            return
        # The gradient of the weight, and that of the input where something before it is trained.
        products = 1 + (not inputs.stop_gradient)

        def on_gradient(gradient: paddle.Tensor) -> None:
            with self._guard():
                record(gradient, products, backward=True)

        output.register_hook(on_gradient)


def stepped_elements(optimizer: Any) -> Counter[str]:
    """Elements that the optimizer is about to step, by dtype: of masters where it has them."""
    elements: Counter[str] = Counter()
    groups = [group["params"] if isinstance(group, dict) else [group] for group in optimizer._parameter_list]
    for parameter in (parameter for group in groups for parameter in group):
        if parameter.grad is not None:
            half = parameter.dtype in (paddle.float16, paddle.bfloat16)
            masters = half and getattr(optimizer, "_multi_precision", False)
            elements["float32" if masters else dtype_name(parameter.dtype)] += parameter.size
    return elements


def _work(layer: nn.Layer, output: paddle.Tensor) -> tuple[str, str, int]:
    """The operation and function of a layer, and its FLOPs: two for each multiplication with its addition."""
    weight = layer.weight.shape
    if isinstance(layer, nn.Linear):  # [inputs, outputs]
        return "matmul", "linear", 2 * output.size * weight[0]
    per_output = 1
    for size in weight[1:]:  # [outputs, inputs of a group, ...kernel]
        per_output *= size
    return "conv2d", "conv2d" if len(weight) == 4 else "conv1d", 2 * output.size * per_output


def kernel_counts() -> dict[str, Counter[str]]:
    """Paddle's counts so far, `operation -> "float16,bfloat16,float32,other"`, without zeros."""
    kernels = {}
    for name, text in core.get_low_precision_op_list().items():
        columns = zip(COLUMNS, str(text).split(","), strict=True)
        counts = {dtype: int(count) for dtype, count in columns if int(count)}
        if counts:
            kernels[name] = Counter(counts)
    return kernels


@contextlib.contextmanager
def around_optimizer_steps(before: Callable[[Any], None], after: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `before` with the optimizer before each eager optimizer step in this context, and `after` after it.

    A step is a call of `step`, or of `minimize`, which `paddle.Model` calls. One may call the other: that is one step.
    """
    within = False

    def observed(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal within
            if within or not paddle.in_dynamic_mode():
                return method(optimizer, *args, **kwargs)
            before(optimizer)
            within = True
            try:
                return method(optimizer, *args, **kwargs)
            finally:
                within = False
                after()

        return step

    with contextlib.ExitStack() as patches:
        for kind in (paddle.optimizer.Optimizer, *_subclasses(paddle.optimizer.Optimizer)):
            for name in {"step", "minimize"} & vars(kind).keys():
                patches.enter_context(replaced(kind, name, observed(getattr(kind, name))))
        yield


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
