"""What really ran in a training step in Paddle: reports as `amp_launcher.precision.observation` defines them.

Matrix products, convolutions and recurrent layers are observed by the functions of Paddle that make them: the dtype of
the output is the dtype of the product, and the dtype of the gradient that comes back to it is that of its backward.
Paddle's own counts of kernels by dtype are the second evidence: a product that no observed call made, or one in another
dtype, contradicts the first. Paddle counts no kernels of backward, so there the gradients' dtype stands alone. Its
counts also show the operation lists at work: those of the whole step what is denied, those inside of the model what is
allowed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle import _C_ops, _legacy_C_ops, nn
from paddle.base import core

from amp_launcher.around.replaced import observed
from amp_launcher.paddle.observe.products import KERNELS
from amp_launcher.paddle.observe.step_calls import COLUMNS, StepCalls, around_optimizer_steps, kernel_counts
from amp_launcher.paddle.precision.base import dtype_name
from amp_launcher.paddle.precision.mechanisms import NORMS, matching_layers
from amp_launcher.precision import observation
from amp_launcher.precision.observation import Guard
from amp_launcher.precision.operations import in_paddle
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.world.world import rank_and_size

COUNTING = "FLAGS_low_precision_op_list"
"""Paddle's flag by which it counts kernels."""
COMPILED = "a graph that Paddle compiled"
OTHERS = (
    "addmm",
    "baddbmm",
    "bilinear",
    "bilinear_tensor_product",
    "deformable_conv",
    "einsum",
    "flash_attn",
    "flash_attn_unpadded",
    "fused_attention",
    "fused_feedforward",
    "gru",
    "lstm",
    "memory_efficient_attention",
    "mul",
    "multi_dot",
    "mv",
)
"""Kernels that multiply matrices and aren't counted here."""
BATCH_NORMS = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
ROUNDED = 1 + 2.0**-12
"""A number that float32 holds exactly and TF32, with its 10 bits, does not."""


class PrecisionObserver:
    """Observes single training steps of `model` in a `resolved` precision."""

    def __init__(self, model: nn.Layer, resolved: ResolvedPrecision) -> None:
        self.reports: list[dict[str, Any]] = []
        self._model = model
        self._resolved = resolved

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        """Observe one whole step: forward, backward and optimizer. A step that raises is not reported."""
        guard = self._guard()
        calls = StepCalls(self._is_kept, guard, self._resolved.device)
        stack = contextlib.ExitStack()
        with guard():
            self._start(calls, stack, guard)
        report: dict[str, Any] = {}
        kernels: dict[str, Counter[str]] = {}
        try:
            yield
        finally:
            with guard(), stack:
                kernels = kernel_counts()
        with guard():
            report = {} if guard.problems else {**self._head(number, evaluation), **self._report(calls, kernels)}
        self._add_report(number, evaluation, report, guard)

    def _guard(self) -> Guard:
        """For one step: an error in observing it concerns no other."""
        return Guard()

    def _start(self, calls: StepCalls, stack: contextlib.ExitStack, guard: Guard) -> None:
        stack.enter_context(calls.recording(self._on_layer))
        stack.enter_context(self._recording_steps(calls, guard))
        stack.callback(paddle.set_flags, paddle.get_flags(COUNTING))
        core.clear_low_precision_op_list()
        paddle.set_flags({COUNTING: 1})

        def before(*args: Any, **kwargs: Any) -> None:
            """From its first graph on no kernel of the step is counted: the threads of graphs would corrupt the counts,
            and a graph that began without threads can't run with them later."""
            calls.graphs += 1
            paddle.set_flags({COUNTING: 0})

        for owner in (_C_ops, _legacy_C_ops):
            stack.enter_context(observed(owner, "run_program", guard, before, lambda *ended: None))
        stack.enter_context(observed(paddle.static.Executor, "run", guard, before, lambda *ended: None))

    def _report(self, calls: StepCalls, kernels: Mapping[str, Counter[str]]) -> dict[str, Any]:
        exact = all(call["dtype"] != "float32" for call in calls.calls)
        return {
            "calls": observation.merged(calls.calls),
            "listed": [*_listed(self._resolved.allow, calls.inside), *_listed(self._resolved.deny, kernels)],
            "matched": self._matched(calls.called),
            "unaccounted": {
                **{name: sum(kernels[name].values()) for name in OTHERS if kernels.get(name)},
                **({COMPILED: calls.graphs} if calls.graphs else {}),
            },
            "audit": "" if calls.graphs else _disagreement(calls.calls, kernels),
            "optimizer": dict(calls.stepped),
            "float32": {"switches": {}, "arithmetic": {}} if exact else self._float32(),
        }

    def _add_report(self, number: int, evaluation: bool, report: dict[str, Any], guard: Guard) -> None:
        """Add the step's report. Where observing it failed, only that: the rest of the report may lack something."""
        self.reports.append(self._failed(number, guard.problems, evaluation) if guard.problems else report)

    def _recording_steps(self, calls: StepCalls, guard: Guard) -> contextlib.AbstractContextManager[None]:
        """Optimizer steps in this context are recorded."""
        return around_optimizer_steps(guard, calls.step)

    def _on_layer(self, layer: nn.Layer) -> None:
        """Called before each layer is called."""

    def _layers(self) -> Iterable[nn.Layer]:
        """The layers that hold the model's parameters."""
        layers: list[nn.Layer] = self._model.sublayers(include_self=True)
        return layers

    def _kept(self) -> Mapping[str, Sequence[nn.Layer]]:
        """The layers that `amp.keep_fp32` keeps in float32, by its patterns."""
        return {pattern: matching_layers(self._model, pattern) for pattern in self._resolved.amp.keep_fp32}

    def _is_kept(self, layer: nn.Layer) -> bool:
        """Whether `amp.keep_fp32` keeps it in float32."""
        kept = (layer for layers in self._kept().values() for layer in layers)
        return any(layer in outer.sublayers(include_self=True) for outer in kept)

    def _float32(self) -> dict[str, dict[str, str]]:
        """How float32 products are computed: Paddle's TF32 switches, and a product that TF32 would round."""
        switches = {"set_cublas_switch": core.get_cublas_switch(), "set_cudnn_switch": core.get_cudnn_switch()}
        with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
            product = paddle.matmul(paddle.full([16, 16], ROUNDED), paddle.eye(16))
        exact = bool((product == ROUNDED).all())
        on_gpu = self._resolved.device == "cuda"
        return {
            "switches": {name: str(on) for name, on in switches.items()} if on_gpu else {},
            "arithmetic": {"matmul": "float32" if exact else "tf32"},
        }

    def _matched(self, called: Collection[int]) -> list[str]:
        """The patterns of `amp.keep_fp32` of which a layer, or a layer inside of it, was called."""
        return [
            pattern
            for pattern, layers in self._kept().items()
            if any(id(inner) in called for layer in layers for inner in layer.sublayers(include_self=True))
        ]

    def _failed(self, number: int, problems: list[str], evaluation: bool = False) -> dict[str, Any]:
        """The report of a step that could not be observed."""
        return {**self._head(number, evaluation, parameters=[]), "problems": problems}

    def _head(
        self, number: int, evaluation: bool = False, parameters: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        rank, size = rank_and_size("paddle")
        return observation.head(
            number,
            self._resolved,
            rank=rank,
            world_size=size,
            parameters=self._parameters() if parameters is None else parameters,
            evaluation=evaluation,
        )

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for layer in self._layers():
            norm = isinstance(layer, (*NORMS, *BATCH_NORMS))
            group = "kept" if self._is_kept(layer) else "norm" if norm else "other"
            for parameter in layer._parameters.values():  # `parameters()` fails in static mode
                if parameter is not None:
                    elements[group, dtype_name(parameter.dtype)] += parameter.size
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


def _listed(names: Sequence[str], kernels: Mapping[str, Counter[str]]) -> list[dict[str, Any]]:
    """How often each of these operations, in torch's names, ran on which dtype."""
    listed: Counter[tuple[str, str]] = Counter()
    for name in names:
        for counts in (kernels.get(paddles, Counter()) for paddles in in_paddle((name,))):
            listed.update({(name, dtype): count for dtype, count in counts.items() if dtype != "other"})
    return [{"function": name, "dtypes": [dtype], "calls": count} for (name, dtype), count in listed.items()]


def _disagreement(calls: Iterable[dict[str, Any]], kernels: Mapping[str, Counter[str]]) -> str:
    """Where the products of the observed calls are not those that Paddle counted; empty where they are."""
    seen: Counter[str] = Counter()
    for call in calls:
        if not call["backward"]:
            seen[call["dtype"] if call["dtype"] in COLUMNS else "other"] += call["calls"]
    counted: Counter[str] = Counter()
    for name in KERNELS:
        counted.update(kernels.get(name, {}))
    if seen == counted:
        return ""
    if seen <= counted:
        return f"Paddle counted {_in_words(counted - seen)} that no observed call made, as of a gradient's gradient"
    return f"calls made {_in_words(seen)} in forward, and Paddle counted {_in_words(counted)}"


def _in_words(products: Counter[str]) -> str:
    return " and ".join(f"{count} products in {dtype}" for dtype, count in sorted(products.items())) or "none"
