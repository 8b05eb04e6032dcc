"""What really ran in a training step in Paddle: reports as `recipes.observation` has them.

Linear and convolution layers are watched: the dtype of what a layer puts out is the one that its product was computed
in, and the dtype of the gradient that comes back to it is that of its backward. Paddle's own count of kernels by dtype
is the second witness: where it knows a matrix product that no layer made, or one in another dtype, the two disagree.
Of backward Paddle counts no kernels, so that there the gradients' dtype stands alone. Its counts tell of the operation
lists too: of those of a whole step what is denied, of those inside of the model what is allowed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from recipes import observation
from recipes.operations import in_paddle
from recipes.paddle_.precision import NORMS, Precision, dtype_name

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
        names = dict(model.named_sublayers(include_self=True))
        self._kept = {id(inner) for name in precision.kept for inner in names[name].sublayers(include_self=True)}

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch one whole step: forward, backward and optimizer. Nothing is reported of a step that raises."""
        missing = [
            each for each in ("get_low_precision_op_list", "clear_low_precision_op_list") if not hasattr(core, each)
        ]
        if missing:
            yield
            self.reports.append({**self._head(number), "problems": [f"this Paddle has no {missing[0]}"]})
            return
        calls: Counter[tuple[Any, ...]] = Counter()
        flops: Counter[tuple[Any, ...]] = Counter()
        stepped: Counter[str] = Counter()
        inside = _Inside()
        before = paddle.get_flags(FLAG)[FLAG]
        with contextlib.ExitStack() as stack:
            for layer in self._model.sublayers(include_self=True):
                if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
                    hook = layer.register_forward_post_hook(self._on_layer(calls, flops))
                    stack.callback(hook.remove)
            for hook in inside.hooks(self._model):
                stack.callback(hook.remove)
            self._precision.on_step.append(stepped.update)
            stack.callback(self._precision.on_step.remove, stepped.update)
            stack.callback(paddle.set_flags, {FLAG: before})
            core.clear_low_precision_op_list()
            paddle.set_flags({FLAG: 1})
            yield
            kernels = _kernels()
        self.reports.append(
            {
                **self._head(number),
                "calls": _calls(calls, flops, self._precision.device),
                "listed": [*_listed(self._precision.allow, inside.kernels), *_listed(self._precision.deny, kernels)],
                "unaccounted": {name: sum(kernels[name].values()) for name in OTHERS if kernels.get(name)},
                "audit": _disagreement(calls, kernels),
                "optimizer": dict(stepped),
                "float32": {"switches": {}, "arithmetic": self._arithmetic() if _in_float32(calls) else {}},
            }
        )

    def _on_layer(self, calls: Counter[tuple[Any, ...]], flops: Counter[tuple[Any, ...]]) -> Any:
        def forward(layer: nn.Layer, inputs: tuple[Any, ...], output: paddle.Tensor) -> None:
            operation, function, work = _work(layer, output)
            kept = id(layer) in self._kept
            key = (operation, function, False, dtype_name(output.dtype), kept)
            calls[key] += 1
            flops[key] += work
            if not output.stop_gradient:
                # Gradients of the weight, and of the input where something before it learns.
                products = 1 + (not inputs[0].stop_gradient)

                def backward(gradient: paddle.Tensor) -> None:
                    back = (operation, function, True, dtype_name(gradient.dtype), kept)
                    calls[back] += products
                    flops[back] += products * work

                output.register_hook(backward)

        return forward

    def _arithmetic(self) -> dict[str, str]:
        """How float32 products are done: TF32 rounds what float32 holds."""
        with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
            found = paddle.matmul(paddle.full([16, 16], ROUNDED), paddle.eye(16))
        exact = bool((found == ROUNDED).all())
        return {"matmul": "float32" if exact else "tf32"}

    def _head(self, number: int) -> dict[str, Any]:
        precision = self._precision
        return observation.head(
            number,
            amp=precision.amp,
            dtype=precision.dtype,
            allow=precision.allow,
            deny=precision.deny,
            tf32=precision.tf32,
            device=precision.device,
            parameters=self._parameters(),
        )

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for layer in self._model.sublayers(include_self=True):
            norm = isinstance(layer, (*NORMS, *BATCH_NORMS))
            group = "kept" if id(layer) in self._kept else "norm" if norm else "other"
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


class _Inside:
    """Counts of what the model itself runs, without what the training loop adds up beside it."""

    def __init__(self) -> None:
        self.kernels: dict[str, Counter[str]] = {}
        self._before: dict[str, Counter[str]] = {}

    def hooks(self, model: nn.Layer) -> tuple[Any, Any]:
        return model.register_forward_pre_hook(self._enter), model.register_forward_post_hook(self._leave)

    def _enter(self, layer: nn.Layer, inputs: Any) -> None:
        self._before = _kernels()

    def _leave(self, layer: nn.Layer, inputs: Any, output: Any) -> None:
        for name, counts in _kernels().items():
            self.kernels.setdefault(name, Counter()).update(counts - self._before.get(name, Counter()))


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
