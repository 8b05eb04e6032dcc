"""The calls of layers and optimizers in a training step in Paddle, with dtypes and FLOPs, and Paddle's own counts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from amp_launcher.around.replaced import observed
from amp_launcher.paddle.precision import hooks
from amp_launcher.paddle.precision.base import dtype_name
from amp_launcher.paddle.precision.clip import parameters
from amp_launcher.precision import observation
from amp_launcher.precision.observation import Guard

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
        self.stepped.update(stepped_elements(optimizer))

    @contextlib.contextmanager
    def recording(self, on_layer: Callable[[nn.Layer], None]) -> Iterator[None]:
        """Record every call of a layer in this context; `on_layer` is called with each layer before."""
        uncast: dict[int, Any] = {}
        """What prepared models gave in calls that have not returned, before it was made float32."""

        def begin(layer: nn.Layer, *inputs: Any, **named: Any) -> tuple[dict[str, Counter[str]] | None] | None:
            if not paddle.in_dynamic_mode():
                return None
            on_layer(layer)
            self.called.add(id(layer))
            before = kernel_counts() if not self._depth and layer.parameters() else None
            self._depth += 1
            return (before,)

        def end(
            begun: tuple[dict[str, Counter[str]] | None], returned: tuple[Any, ...], *args: Any, **named: Any
        ) -> None:
            self._depth -= 1
            output = uncast.pop(id(args[0]), returned[0] if returned else None)
            if returned:
                self._record(begun[0], *args, *named.values(), output=output)

        with (
            hooks.uncast_to(lambda layer, outputs: uncast.update({id(layer): outputs})),
            observed(nn.Layer, "__call__", self._guard, begin, end),
        ):
            yield

    def _record(self, before: dict[str, Counter[str]] | None, layer: nn.Layer, *inputs: Any, output: Any) -> None:
        """Record a call of a layer; `before` are the counts at its start, of one that no other layer called."""
        if before is not None:
            for name, counts in kernel_counts().items():
                self.inside.setdefault(name, Counter()).update(counts - before.get(name, Counter()))
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            self._product(layer, inputs[0], output)

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
            record(gradient, products, backward=True)

        output.register_hook(self._guard.hook(on_gradient))


def stepped_elements(optimizer: Any) -> Counter[str]:
    """Elements that the optimizer is about to step, by dtype: of masters where it has them."""
    elements: Counter[str] = Counter()
    for parameter in parameters(optimizer):
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
def around_optimizer_steps(
    guard: Guard, before: Callable[[Any], None], after: Callable[[Any], None] = lambda optimizer: None
) -> Iterator[None]:
    """Call `before` with the optimizer before each eager optimizer step in this context, and `after` after it.

    A step is a call of `step`, or of `minimize`, which `paddle.Model` calls. One may call the other: that is one step.
    """
    within = False

    def begin(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal within
        if within or not paddle.in_dynamic_mode():
            return None
        before(optimizer)
        within = True
        return optimizer

    def end(optimizer: Any, returned: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
        nonlocal within
        within = False
        if returned:
            after(optimizer)

    with contextlib.ExitStack() as patches:
        for kind in (paddle.optimizer.Optimizer, *_subclasses(paddle.optimizer.Optimizer)):
            for name in {"step", "minimize"} & vars(kind).keys():
                patches.enter_context(observed(kind, name, guard, begin, end))
        yield


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
