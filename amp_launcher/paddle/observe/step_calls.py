"""The calls of layers and optimizers in a training step in Paddle, with dtypes and FLOPs, and Paddle's own counts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from amp_launcher.around.replaced import observed
from amp_launcher.paddle.observe import products
from amp_launcher.paddle.precision.base import dtype_name
from amp_launcher.paddle.precision.clip import parameters
from amp_launcher.precision import observation
from amp_launcher.precision.observation import Guard

COLUMNS = ("float16", "bfloat16", "float32", "other")
"""Dtypes of the counts that Paddle keeps of each operation."""
NAMED = {nn.Linear: "linear", nn.Conv1D: "conv1d"}
"""Layers that give their product another name than its operation."""
MOST_CALLS = 1000
"""Recorded products before equal ones are added up. A script may compute for hours before its first optimizer step."""


class StepCalls:
    """The calls of layers and optimizers that are recorded in a step."""

    def __init__(self, is_kept: Callable[[nn.Layer], bool], guard: Guard, device: str) -> None:
        self.calls: list[dict[str, Any]] = []
        """Products, as a report has them."""
        self.stepped: Counter[str] = Counter()
        """Elements that optimizers stepped, by dtype."""
        self.inside: dict[str, Counter[str]] = {}
        """Kernels inside of layers with parameters, without those of the training loop and the loss."""
        self.called: set[int] = set()
        """Ids of the layers that were called."""
        self.graphs = 0
        """Compiled functions and static graphs that ran."""
        self._is_kept = is_kept
        self._guard = guard
        self._device = device
        self._within: list[nn.Layer] = []
        """The layers whose calls have not returned, the innermost last."""

    def step(self, optimizer: Any) -> None:
        """Record a step that the optimizer is about to take."""
        self.stepped.update(stepped_elements(optimizer))

    @contextlib.contextmanager
    def recording(self, on_layer: Callable[[nn.Layer], None]) -> Iterator[None]:
        """Record each call of a layer and each product in this context; `on_layer` is called with each layer before."""

        def begin(layer: nn.Layer, *inputs: Any, **named: Any) -> tuple[dict[str, Counter[str]] | None] | None:
            if not paddle.in_dynamic_mode():
                return None
            on_layer(layer)
            self.called.add(id(layer))
            before = kernel_counts() if not self._within and layer.parameters() else None
            self._within.append(layer)
            return (before,)

        def end(
            begun: tuple[dict[str, Counter[str]] | None], returned: tuple[Any, ...], *args: Any, **named: Any
        ) -> None:
            self._within.pop()
            if returned and begun[0] is not None:
                for name, counts in kernel_counts().items():
                    self.inside.setdefault(name, Counter()).update(counts - begun[0].get(name, Counter()))

        with observed(nn.Layer, "__call__", self._guard, begin, end), products.observing(self._guard, self._product):
            yield

    def _product(self, operation: str, given: Sequence[Any], output: paddle.Tensor, work: int) -> None:
        layer = self._within[-1] if self._within else None
        kept = layer is not None and self._is_kept(layer)
        function = next((name for kind, name in NAMED.items() if isinstance(layer, kind)), operation)

        def record(tensor: paddle.Tensor, times: int, backward: bool) -> None:
            self.calls.append(
                observation.call(
                    operation,
                    dtype_name(tensor.dtype),
                    times * work,
                    functions=[function],
                    backward=backward,
                    kept=kept,
                    device=self._device,
                    calls=times,
                )
            )
            if len(self.calls) > MOST_CALLS:
                self.calls = observation.merged(self.calls)

        record(output, 1, backward=False)
        if output.stop_gradient:
            return
        # A gradient for each matrix that is trained, or has something before it that is.
        trained = sum(isinstance(one, paddle.Tensor) and not one.stop_gradient for one in given[:2])

        def on_gradient(gradient: paddle.Tensor) -> None:
            record(gradient, trained or 1, backward=True)

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
