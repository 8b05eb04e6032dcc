"""What really ran in a training step in Paddle: reports as `recipes.precision.observation` has them.

Linear and convolution layers are watched: the dtype of what a layer puts out is the one that its product was computed
in, and the dtype of the gradient that comes back to it is that of its backward. Paddle's own count of kernels by dtype
is the second witness: where it knows a matrix product that no layer made, or one in another dtype, the two disagree.
Of backward Paddle counts no kernels, so that there the gradients' dtype stands alone. Its counts tell of the operation
lists too: of those of a whole step what is denied, of those inside of the model what is allowed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from recipes.paddle_.precision.base import NORMS, Precision, dtype_name, stepped
from recipes.precision import observation
from recipes.precision.observation import Guard
from recipes.precision.operations import in_paddle
from recipes.trainer.world import rank_and_size

FLAG = "FLAGS_low_precision_op_list"
COLUMNS = ("float16", "bfloat16", "float32", "other")
"""Dtypes of the counts that Paddle keeps of each operation."""
PRODUCTS = ("matmul", "matmul_v2", "linear", "linear_v2", "fused_gemm_epilogue", "conv2d", "depthwise_conv2d")
"""Operations that the watched layers are made of."""
OTHERS = (
    "addmm",
    "baddbmm",
    "bilinear",
    "bmm",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "deformable_conv",
    "depthwise_conv2d_transpose",
    "einsum",
    "flash_attn",
    "flash_attn_unpadded",
    "fused_attention",
    "fused_feedforward",
    "gru",
    "lstm",
    "memory_efficient_attention",
    "mul",
    "mv",
    "rnn",
)
"""Operations that multiply matrices and aren't counted."""
CONVOLUTIONS = (nn.Conv1D, nn.Conv2D)
BATCH_NORMS = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
ROUNDED = 1 + 2.0**-12
"""A number that float32 holds and TF32, with its 10 bits, does not."""


class Witness:
    """Watches single training steps of `model` under `precision`."""

    def __init__(self, model: nn.Layer, precision: Precision) -> None:
        self.reports: list[dict[str, Any]] = []
        self._model = model
        self._precision = precision

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        """Watch one whole step: forward, backward and optimizer. Nothing is reported of a step that raises."""
        guard = Guard()
        seen = Seen(self._is_kept, guard)
        stack = contextlib.ExitStack()
        with guard():
            self._start(seen, stack)
        report: dict[str, Any] = {}
        kernels: dict[str, Counter[str]] = {}
        try:
            yield
        finally:
            with guard(), stack:
                kernels = _kernels()
        with guard():
            report = self._report(seen, kernels)
        self._leave(number, evaluation, report, guard)

    def _start(self, seen: Seen, stack: contextlib.ExitStack) -> None:
        stack.enter_context(seen.watching(self._on_layer))
        stack.enter_context(self._told_of_steps(seen))
        stack.callback(paddle.set_flags, {FLAG: paddle.get_flags(FLAG)[FLAG]})
        core.clear_low_precision_op_list()
        paddle.set_flags({FLAG: 1})

    def _report(self, seen: Seen, kernels: Mapping[str, Counter[str]]) -> dict[str, Any]:
        return {
            "calls": _calls(seen.calls, seen.flops, self._precision.device),
            "listed": [*_listed(self._precision.allow, seen.inside), *_listed(self._precision.deny, kernels)],
            "matched": self._matched(seen.ran),
            "unaccounted": {name: sum(kernels[name].values()) for name in OTHERS if kernels.get(name)},
            "audit": _disagreement(seen.calls, kernels),
            "optimizer": dict(seen.stepped),
            "float32": self._float32() if _in_float32(seen.calls) else {"switches": {}, "arithmetic": {}},
        }

    def _leave(self, number: int, evaluation: bool, report: dict[str, Any], guard: Guard) -> None:
        """Report the step; where observing it failed, that alone: what else was seen is not all that there was."""
        self.reports.append(
            {**self._head(number, evaluation), **({"problems": guard.problems} if guard.problems else report)}
        )

    @contextlib.contextmanager
    def _told_of_steps(self, seen: Seen) -> Iterator[None]:
        """Optimizers' steps in here are seen."""
        self._precision.on_step.append(seen.step)
        try:
            yield
        finally:
            self._precision.on_step.remove(seen.step)

    def _on_layer(self, layer: nn.Layer) -> None:
        """A layer is called."""

    def _layers(self) -> Iterable[nn.Layer]:
        """Those whose parameters are the model's."""
        found: list[nn.Layer] = self._model.sublayers(include_self=True)
        return found

    def _is_kept(self, layer: nn.Layer) -> bool:
        """Whether `amp.keep_fp32` keeps it in float32."""
        return any(layer in each.sublayers(include_self=True) for each in self._precision.kept_layers)

    def _float32(self) -> dict[str, dict[str, str]]:
        """How float32 products are done: Paddle's TF32 switches, and a product, as TF32 rounds what float32 holds."""
        switches = {"set_cublas_switch": core.get_cublas_switch(), "set_cudnn_switch": core.get_cudnn_switch()}
        with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
            found = paddle.matmul(paddle.full([16, 16], ROUNDED), paddle.eye(16))
        exact = bool((found == ROUNDED).all())
        told = {name: str(on) for name, on in switches.items()} if self._precision.device == "cuda" else {}
        return {"switches": told, "arithmetic": {"matmul": "float32" if exact else "tf32"}}

    def _matched(self, ran: Collection[int]) -> list[str]:
        """The patterns of `amp.keep_fp32` of which a layer ran, by what it is or by what it is in."""
        return [
            pattern
            for pattern, kept in self._precision.kept_by.items()
            if any(id(inner) in ran for layer in kept for inner in layer.sublayers(include_self=True))
        ]

    def _head(self, number: int, evaluation: bool = False) -> dict[str, Any]:
        precision = self._precision
        rank, size = rank_and_size("paddle")
        return observation.head(
            number,
            rank=rank,
            world_size=size,
            amp=precision.amp,
            dtype=precision.dtype,
            allow=precision.allow,
            deny=precision.deny,
            tf32=precision.tf32,
            device=precision.device,
            parameters=self._parameters(),
            evaluation=evaluation,
        )

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for layer in self._layers():
            norm = isinstance(layer, (*NORMS, *BATCH_NORMS))
            group = "kept" if self._is_kept(layer) else "norm" if norm else "other"
            for each in layer.parameters(include_sublayers=False):
                elements[group, dtype_name(each.dtype)] += each.size
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


def _in_float32(calls: Counter[tuple[Any, ...]]) -> bool:
    return any(dtype == "float32" for _, _, _, dtype, _ in calls)


def _work(layer: nn.Layer, output: paddle.Tensor) -> tuple[str, str, int]:
    """The operation and function of a layer, and its multiplications and additions: two for each pair of operands."""
    weight = layer.weight.shape
    if isinstance(layer, nn.Linear):  # [inputs, outputs]
        return "matmul", "linear", 2 * output.size * weight[0]
    per_output = 1
    for each in weight[1:]:  # [outputs, inputs of a group, ...kernel]
        per_output *= each
    return "conv2d", "conv2d" if len(weight) == 4 else "conv1d", 2 * output.size * per_output


class Seen:
    """What layers and optimizers are seen to do while they are watched."""

    def __init__(self, is_kept: Callable[[nn.Layer], bool], guard: Guard) -> None:
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.flops: Counter[tuple[Any, ...]] = Counter()
        self.stepped: Counter[str] = Counter()
        """What optimizers stepped, in elements by dtype."""
        self.inside: dict[str, Counter[str]] = {}
        """Kernels of what has parameters alone, without what the training loop or a loss computes beside it."""
        self.ran: set[int] = set()
        """The layers that were called, by their ids."""
        self._is_kept = is_kept
        self._guard = guard
        self._depth = 0

    def step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        with self._guard():
            self.stepped.update(stepped(optimizer))

    @contextlib.contextmanager
    def watching(self, told: Callable[[nn.Layer], None]) -> Iterator[None]:
        """Every call of a layer in here is seen; `told` gets each layer."""
        original = nn.Layer.__call__

        def call(layer: nn.Layer, *inputs: Any, **named: Any) -> Any:
            if not paddle.in_dynamic_mode():
                return original(layer, *inputs, **named)
            before: dict[str, Counter[str]] | None = None
            with self._guard():
                told(layer)
                self.ran.add(id(layer))
                before = _kernels() if not self._depth and layer.parameters() else None
            self._depth += 1
            try:
                output = original(layer, *inputs, **named)
            finally:
                self._depth -= 1
            with self._guard():
                if before is not None:
                    for name, counts in _kernels().items():
                        self.inside.setdefault(name, Counter()).update(counts - before.get(name, Counter()))
                if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
                    self._product(layer, next(iter((*inputs, *named.values()))), output)
            return output

        nn.Layer.__call__ = call
        try:
            yield
        finally:
            nn.Layer.__call__ = original

    def _product(self, layer: nn.Layer, given: paddle.Tensor, output: paddle.Tensor) -> None:
        operation, function, work = _work(layer, output)
        kept = self._is_kept(layer)
        key = (operation, function, False, dtype_name(output.dtype), kept)
        self.calls[key] += 1
        self.flops[key] += work
        if output.stop_gradient:
            return
        # Gradients of the weight, and of the input where something before it learns.
        products = 1 + (not given.stop_gradient)

        def backward(gradient: paddle.Tensor) -> None:
            with self._guard():
                back = (operation, function, True, dtype_name(gradient.dtype), kept)
                self.calls[back] += products
                self.flops[back] += products * work

        output.register_hook(backward)


def _listed(names: Sequence[str], kernels: Mapping[str, Counter[str]]) -> list[dict[str, Any]]:
    """How often each of these operations, by torch's names, ran on which dtype."""
    found: Counter[tuple[str, str]] = Counter()
    for name in names:
        for counts in (kernels.get(each, Counter()) for each in in_paddle((name,))):
            found.update({(name, dtype): count for dtype, count in counts.items() if dtype != "other"})
    return [{"function": name, "dtypes": [dtype], "calls": count} for (name, dtype), count in found.items()]


def _kernels() -> dict[str, Counter[str]]:
    """Paddle's counts so far, `operation -> "float16,bfloat16,float32,other"`, without zeros."""
    found = {}
    for name, text in core.get_low_precision_op_list().items():
        counts = {dtype: int(each) for dtype, each in zip(COLUMNS, str(text).split(","), strict=True) if int(each)}
        if counts:
            found[name] = Counter(counts)
    return found


def _disagreement(calls: Counter[tuple[Any, ...]], kernels: Mapping[str, Counter[str]]) -> str:
    """Where the products of the watched layers are not those that Paddle counted; empty where they are."""
    seen: Counter[str] = Counter()
    for (_, _, backward, dtype, _), count in calls.items():
        if not backward:
            seen[dtype] += count
    counted: Counter[str] = Counter()
    for name in PRODUCTS:
        counted.update(kernels.get(name, {}))
    if seen == counted:
        return ""
    told = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(counted.items())) or "none"
    own = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(seen.items())) or "none"
    return f"layers made {own} products in forward, and Paddle counted {told}"


def _calls(calls: Counter[tuple[Any, ...]], flops: Counter[tuple[Any, ...]], device: str) -> list[dict[str, Any]]:
    return [
        {
            "operation": operation,
            "functions": [function],
            "backward": backward,
            "dtype": dtype,
            "kept": kept,
            "compiled": False,
            "device": device,
            "calls": count,
            "flops": flops[operation, function, backward, dtype, kept],
        }
        for (operation, function, backward, dtype, kept), count in calls.items()
    ]
