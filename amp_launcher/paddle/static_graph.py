"""Training by a static graph in Paddle's older intermediate representation, which its `static.amp` rewrites.

On a device without half-precision kernels `static.amp.decorate` removes every operation from its lists and rewrites
nothing; on a CPU `static.amp.bf16` does the rewriting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy
import paddle
from paddle import nn, pir_utils
from paddle.base import core
from paddle.base.layer_helper import LayerHelper

from amp_launcher.around.replaced import replaced
from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.paddle.precision.loss_scale import scaler_arguments
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.precision.support import STATIC_ON_CPU
from amp_launcher.typed import SettingsError

GUARD = "__use_fp16__"
"""Part of the name scope of operations inside of `fp16_guard`."""


def guard(wanted: bool) -> AbstractContextManager[Any]:
    """`fp16_guard` and a CPU's `bf16_guard` if it is wanted and a static graph is being built, else nothing."""
    stack = contextlib.ExitStack()
    if wanted and not paddle.in_dynamic_mode():
        stack.enter_context(paddle.static.amp.fp16_guard())
        stack.enter_context(paddle.static.amp.bf16.bf16_guard())
    return stack


def decorate(precision: Mechanism, optimizer: Any) -> Any:
    """An optimizer that rewrites the graph to the level as it minimizes; the same optimizer at o0.

    At o2 and o3 only what is inside of `guard` becomes half precision, which a loss should not be.

    Raises `SettingsError` on a CPU for which oneDNN has no kernels in bfloat16.
    """
    if precision.level == "o0":
        return optimizer
    half_model = precision.level != "o1"
    if on_cpu(precision):
        allow, deny = map(set, precision.lists().values())
        if not core.supports_bfloat16():
            raise SettingsError(
                f"amp={precision.level}: Paddle multiplies in bfloat16 on CPUs with AVX-512 alone, and this one has "
                "none; say amp=o0 or framework=torch",
                "amp.level",
            )
        bf16 = paddle.static.amp.bf16
        lists = bf16.AutoMixedPrecisionListsBF16(custom_bf16_list=allow, custom_fp32_list=deny)
        return bf16.decorate_bf16(optimizer, lists, use_pure_bf16=half_model)
    return paddle.static.amp.decorate(
        optimizer,
        amp_lists=paddle.static.amp.CustomOpLists(**precision.lists(), dtype=precision.dtype),
        level="O2" if half_model else "O1",
        dtype=precision.dtype,
        master_weight=precision.resolved.master_weights if half_model else None,
        use_amp_guard=half_model,
        **scaler_arguments(precision.resolved.loss_scale),
    )


def on_cpu(precision: Mechanism) -> bool:
    """Whether a CPU's bfloat16 carries the level out."""
    return precision.resolved.mechanism in STATIC_ON_CPU


class StaticGraph:
    """A program that takes one optimizer step on a batch, and the scope that holds its variables.

    Also a `amp_launcher.loop.array_state.Tensors`: its persistable variables are its state.
    """

    def __init__(
        self,
        *,
        make: Callable[[], nn.Layer],
        make_optimizer: Callable[[nn.Layer], Any],
        precision: Mechanism,
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
            bf16 = on_cpu(precision)
            if bf16:
                # Without these Paddle's backward of the first product crashes, and a bfloat16 graph takes no float32.
                inputs.stop_gradient = False
                inputs = paddle.assign(inputs) if precision.level != "o1" else inputs
            net = make()
            with guard(not guarded):
                outputs = net(inputs)
            if not bf16 or precision.level != "o1":  # there the rewriting casts, and fails where a cast is already
                outputs = outputs.astype("float32")
            self._loss = nn.MSELoss()(outputs, labels)  # outside of the guard: in float32
            self.optimizer = make_optimizer(net)
            decorated = decorate(precision, self.optimizer)
            with _any_of_variables():
                decorated.minimize(self._loss)
            checks = self.operations("check_finite")
            self._overflows = [name for operation in checks for name in operation.output("FoundInfinite")]
            if self._overflows:
                scale = decorated.get_loss_scaling().name
                precision.read_scale = lambda: float(numpy.ravel(self.value(scale))[0])
            with paddle.static.scope_guard(self._scope):
                self._executor.run(startup)
                if precision.level in ("o2", "o3"):
                    decorated.amp_init(place, scope=self._scope)

    def step(self, inputs: numpy.ndarray, labels: numpy.ndarray) -> tuple[float, StepOutcome]:
        """Take a step on float32 arrays of shape [batch, width]; returns its loss and its outcome."""
        scale = self._precision.scale if self._overflows else None
        with _static(), paddle.static.scope_guard(self._scope):
            feed = {"inputs": inputs, "labels": labels}
            fetched = self._executor.run(self.program, feed=feed, fetch_list=[self._loss, *self._overflows])
        loss, *overflows = (numpy.ravel(array)[0] for array in fetched)
        return float(loss), self._precision.record(any(map(bool, overflows)), scale)

    def arrays(self) -> dict[str, numpy.ndarray]:
        return {name: self.value(name) for name in self._names()}

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        for name in self._names():
            self._variable(name).set(saved[name], self._place)

    @property
    def block(self) -> Any:
        """The program's operations and variables."""
        return self.program.global_block()

    def operations(self, *types: str) -> Iterator[Any]:
        """The program's operations whose type starts with one of these."""
        return (operation for operation in self.block.ops if operation.type.startswith(types))

    def in_guard(self, operation: Any) -> bool:
        """Whether it may run in half precision: without a guard every operation may."""
        return not self._guarded or (operation.has_attr("op_namescope") and GUARD in operation.attr("op_namescope"))

    def _names(self) -> list[str]:
        persistable = (variable.name for variable in self.program.list_vars() if variable.persistable)
        return [name for name in persistable if self._scope.find_var(name)]

    def value(self, name: str) -> numpy.ndarray:
        """A persistable variable as it is now."""
        return numpy.array(self._variable(name))

    def _variable(self, name: str) -> Any:
        return self._scope.find_var(name).get_tensor()


def _any_of_variables() -> AbstractContextManager[None]:
    """Replace `paddle.any` by one for the older representation. Paddle's loss scaling calls it where gradients are of
    two dtypes, as under `fp16_guard`, and that of 3.3 doesn't take variables of that representation."""

    def any_of(tensor: Any) -> Any:
        helper = LayerHelper("any")
        result = helper.create_variable_for_type_inference("bool")
        helper.append_op(
            type="reduce_any", inputs={"X": tensor}, outputs={"Out": result}, attrs={"dim": [0], "reduce_all": True}
        )
        return result

    return replaced(paddle, "any", any_of)


@contextlib.contextmanager
def _static() -> Iterator[None]:
    """Static mode in the older representation; eager mode again afterwards."""
    with pir_utils.OldIrGuard():
        paddle.enable_static()
        try:
            yield
        finally:
            paddle.disable_static()
