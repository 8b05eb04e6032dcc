"""The one place where a training loop meets its precision level. The loop never asks which level it has.

precision = Precision.of(settings.amp, settings.loss_scale, "cpu")
model = precision.build(lambda: keras.Sequential([keras.Input((28, 28, 1)), ...]))   # in the strategy's scope, if any
optimizer = precision.optimizer(keras.optimizers.Adam(), model.trainable_variables)

@tf.function                                                   # o1 rewrites graphs: outside of one it can do nothing
def step(inputs, labels):
    with precision.forward() as tape:
        logits = model(precision.input(inputs), training=True)
        loss = cross_entropy(labels, precision.output(logits))  # loss / k where k micro-batches make a step
    gradients = precision.backward(tape, loss, optimizer)
    outcome = precision.step(optimizer, gradients, clip=1.0)   # reduce over replicas, unscale, clip, skip on overflow
    precision.update()                                         # once an iteration, however many optimizers
    return loss, outcome
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import tensorflow as tf

from recipes.precision import checks, levels, operations, resolved
from recipes.precision.levels import Amp, LossScale
from recipes.precision.support import support_for
from recipes.tensorflow_.gpus import capability_of
from recipes.tensorflow_.precision import grappler, replicas
from recipes.tensorflow_.precision.gradients import Gradient, added, mapped, merged, values
from recipes.tensorflow_.precision.loss_scale import LossScaler, LossScalers, NoScale, make_scaler
from recipes.trainer.spec import read_spec
from recipes.typed import SettingsError


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What became of one optimizer step: scalars of the graph."""

    overflowed: tf.Tensor | None = None
    """Bool; None where there is no loss scale, and so no step is ever skipped."""
    loss_scale: tf.Tensor | None = None
    """The scale that this step's gradients had; None where there is none."""
    grad_norm: tf.Tensor | None = None
    """Norm of all gradients together, unscaled and before clipping; None without clipping."""


class Precision:
    """A precision level, applied to a training loop. This class is o0: float32, every method the plain thing.

    `amp` is as asked for; what was resolved from it is in `level`, `dtype` (float32 at o0, else the half precision in
    use), `loss_scale`, `tf32`, `mechanism`, `device` (cpu or cuda), `xla`, `kept`, and the operation lists `allow` and
    `deny`, and `either`, what is on `infer` or `clear`, all with their gradients.
    """

    policy = "float32"
    """Keras's name for the dtypes of layers and variables."""
    _by_level: ClassVar[dict[str, type[Precision]]] = {}
    """The subclass for each level but o0. `recipes.tensorflow_.precision` imports the module that defines them."""

    def __init_subclass__(cls, *, level: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Precision._by_level[level] = cls

    def __init__(
        self, *, amp: Amp, loss_scale: LossScale, dtype: str, mechanism: str, device: str, tf32: bool, xla: bool
    ) -> None:
        self.amp = amp
        self.level = amp.level
        self.loss_scale = loss_scale
        self.dtype = dtype
        self.mechanism = mechanism
        self.device = device
        self.tf32 = tf32
        self.xla = xla
        lists = operations.tensorflow_lists(levels.named_operations(amp))
        self.allow, self.deny = lists["allow"], lists["deny"]
        self.either = (*lists["infer"], *lists["clear"])
        self.kept: tuple[str, ...] = ()
        """Names of the layers that `amp.keep_fp32` keeps in float32, once a model was built."""
        self._strategy = tf.distribute.get_strategy()
        self._scaler: NoScale | LossScaler | LossScalers = make_scaler(loss_scale)
        self.optimizers: list[keras.Optimizer] = []
        """Those that were given to `optimizer`."""

    @classmethod
    def prepare(cls, amp: Amp, dtype: str) -> None:
        """Set what the level needs in the whole process: here, no graph rewrite that an earlier level left on."""
        grappler.switch_off()

    @staticmethod
    def of(amp: Amp, loss_scale: LossScale, device: str, *, tf32: bool | None = None, xla: bool = False) -> Precision:
        """The level that `amp` names, resolved for `device` (cpu or cuda). To be made in the strategy's scope.

        `tf32` None is off at o0 and on elsewhere; `xla` says that XLA is going to compile. Sets TensorFlow's TF32
        switch and, at o1, its graph rewrites for the whole process. Raises `SettingsError` for what can't be had.
        """
        return _resolve(amp, loss_scale, device, tf32, xla, os.environ)

    @staticmethod
    def from_env(environ: Mapping[str, str] = os.environ) -> Precision:
        """The precision that the launcher was asked for, in a script of one's own.

        The launcher sets LAUNCHER_SPEC, the path of a JSON file with `"schema": 1` and `"settings"`. Raises
        `SettingsError` where it isn't set.
        """
        settings = read_spec(environ, "tensorflow")
        device = settings.device
        if device == "auto":
            device = "cuda" if tf.config.list_physical_devices("GPU") else "cpu"
        return _resolve(settings.amp, settings.loss_scale, device, settings.tf32, settings.xla, environ)

    def build(self, make: Callable[[], keras.Model]) -> keras.Model:
        """The model that `make` makes, in the level's dtypes. `make` has to build its variables too.

        Raises `SettingsError` for a pattern of `amp.keep_fp32` that names no layer, and `RuntimeError` for a model
        without variables, and under another strategy than the one in whose scope this precision was made.
        """
        self._check_strategy("precision.build(...)", tf.distribute.get_strategy())
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            model = self._make(make)
        finally:
            keras.config.set_dtype_policy(before)
        if not model.trainable_variables:
            raise RuntimeError("precision.build(make): the model that make() returns has no variables yet; build it")
        for layer in (each for each in _layers(model) if each.variables):
            if layer.dtype_policy.name != self.policy and not isinstance(layer, keras.Model):
                raise RuntimeError(
                    f"layer {layer.name} has dtype policy {layer.dtype_policy.name}, and amp={self.level} gives it "
                    f"{self.policy}: make layers inside of precision.build(make), without a dtype of their own"
                )
        self._keep(model)
        return model

    def _check_strategy(self, what: str, running: tf.distribute.Strategy) -> None:
        """Variables made in no strategy's scope are one for all replicas, each of which would change them again."""
        if running is not self._strategy:
            raise RuntimeError(
                f"{what} is under {_named(running)}, and this precision was made under {_named(self._strategy)}: make "
                "precision, model and optimizer in the scope of one, as in `with strategy.scope(): precision = "
                "Precision.from_env(); model = precision.build(...)`"
            )

    def _make(self, make: Callable[[], keras.Model]) -> keras.Model:
        return make()

    def _keep(self, model: keras.Model) -> None:
        pass

    def optimizer(self, optimizer: keras.Optimizer, variables: Sequence[Any]) -> keras.Optimizer:
        """The same optimizer, made to step these variables. Once for each optimizer, after `build`.

        Raises `RuntimeError` for one that scales the loss by itself, and under another strategy than the precision's.
        """
        self._check_strategy("precision.optimizer(...)", tf.distribute.get_strategy())
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor is not None:
            raise RuntimeError("this optimizer scales the loss by itself; give precision.optimizer the inner one")
        optimizer.build(list(variables))
        replicas.leave_reducing_to_us(optimizer)
        self.optimizers.append(optimizer)
        self._scaler.add(optimizer)
        return optimizer

    @contextlib.contextmanager
    def forward(self, after: Sequence[Gradient | None] | None = None) -> Iterator[tf.GradientTape]:
        """Everything from the model's inputs to the loss goes in here; backward and step don't.

        `after` are the gradients of the micro-batch before this one: only when it is done does this one begin, so that
        one micro-batch's activations are held at a time.
        """
        running = tf.distribute.get_strategy()
        if running.num_replicas_in_sync > 1:
            self._check_strategy("a step", running)
        before = [values(each) for each in after or () if each is not None]
        with tf.control_dependencies(before), tf.GradientTape(persistent=True) as tape:
            yield tape

    def input(self, tensor: Any) -> Any:
        """What a model is fed, of any structure, in the level's dtype."""
        return tensor

    def output(self, tensor: Any) -> Any:
        """What a model put out, of any structure, in float32: losses and measures are computed from it."""
        return of_floats(lambda each: tf.cast(each, tf.float32), tensor)

    def backward(
        self,
        tape: tf.GradientTape,
        loss: tf.Tensor,
        optimizer: keras.Optimizer,
        before: Sequence[Gradient | None] | None = None,
    ) -> list[Gradient | None]:
        """Gradients of the scaled loss with respect to what `optimizer` steps, added to those of micro-batches before.

        `loss` is a float32 scalar, already divided by the number of micro-batches. The gradient of an embedding is
        `tf.IndexedSlices`, or dense under XLA.
        """
        if loss.dtype != tf.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype.name} and should be float32: make it of precision.output(...), as in "
                "loss = cross_entropy(labels, precision.output(model(precision.input(inputs))))"
            )
        variables = [each.value for each in optimizer._trainable_variables]
        scale = self._scaler.of(optimizer).current()
        found = tape.gradient(loss, variables, output_gradients=scale)
        if self.xla:  # which compiles for shapes that it knows, and how many rows are looked up it doesn't
            found = [None if each is None else tf.convert_to_tensor(each) for each in found]
        found = self._handed_on(found)
        return found if before is None else [added(one, other) for one, other in zip(before, found, strict=True)]

    def _handed_on(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients as sums, scaler and optimizer get them."""
        return gradients

    def step(
        self, optimizer: keras.Optimizer, gradients: Sequence[Gradient | None], clip: float | None = None
    ) -> StepOutcome:
        """Take the mean over the replicas, unscale, clip the norm of all gradients, and step unless they overflowed."""
        if optimizer not in self.optimizers:
            raise RuntimeError("precision.step(optimizer, ...) comes after precision.optimizer(optimizer, variables)")
        scaler = self._scaler.of(optimizer)
        scale = scaler.current()
        gradients = [None if each is None else merged(each) for each in replicas.mean(gradients)]
        gradients = scaler.unscale(gradients)
        present = [values(each) for each in gradients if each is not None]
        overflowed = None
        if scale is not None:
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in present])
            overflowed = tf.logical_not(finite)
            scaler.found(overflowed)
        norm = None
        if clip is not None:
            norm = tf.linalg.global_norm([tf.cast(each, tf.float32) for each in present])
            # As torch clips: https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
            factor = tf.minimum(1.0, clip / (norm + 1e-6))
            gradients = [
                None if each is None else mapped(lambda part: part * tf.cast(factor, part.dtype), each)
                for each in gradients
            ]
        replicas.apply(optimizer, gradients, unless=overflowed)
        return StepOutcome(overflowed=overflowed, loss_scale=scale, grad_norm=norm)

    def update(self) -> None:
        """Move the loss scale. Once an iteration, after the last optimizer's step."""
        self._scaler.update()

    @property
    def scale(self) -> float | None:
        """The loss scale, the lowest of several, None where there is none. Waits for the device."""
        return self._scaler.value

    @property
    def skipped_total(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return self._scaler.skipped

    def state_dict(self) -> dict[str, Any]:
        """Loss scale with its counts: what the model's and the optimizers' own variables don't hold."""
        return {"level": self.level, "dtype": self.dtype, "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises `SettingsError` for one of another level, dtype or loss scale."""
        for key, own in (("level", self.level), ("dtype", self.dtype)):
            if state[key] != own:
                raise SettingsError(f"amp.{key}={own}, and the checkpoint was saved with {state[key]}", f"amp.{key}")
        self._scaler.load_state_dict(state["scaler"])


def of_floats(change: Callable[[tf.Tensor], tf.Tensor], tensors: Any) -> Any:
    """The same structure with every floating-point tensor changed, and labels and the like as they are."""
    tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
    return tf.nest.map_structure(lambda each: change(each) if each.dtype.is_floating else each, tensors)


def _named(strategy: tf.distribute.Strategy) -> str:
    return type(strategy).__name__.lstrip("_")  # outside of any scope: DefaultDistributionStrategy


def _layers(model: keras.Model) -> Iterator[keras.Layer]:
    return iter(model._flatten_layers())


def _resolve(
    amp: Amp, scale: LossScale, device: str, tf32: bool | None, xla: bool, environ: Mapping[str, str]
) -> Precision:
    checks.check(amp, scale, "tensorflow")
    capability = capability_of(device)
    dtype = resolved.resolve_dtype(amp.level, amp.dtype, device, capability, "tensorflow")
    row = support_for("tensorflow", amp.level, dtype, xla, device, amp.master_weights)
    if row.unsupported:
        raise SettingsError(row.unsupported, "amp.level")
    on = resolved.resolve_tf32(tf32, amp.level, device, capability, environ)
    tf.config.experimental.enable_tensor_float_32_execution(on)
    mechanism = Precision._by_level.get(amp.level, Precision)
    mechanism.prepare(amp, dtype)
    return mechanism(
        amp=amp,
        loss_scale=resolved.resolve_scale(scale, amp.level, dtype, amp.master_weights),
        dtype=dtype,
        mechanism=row.mechanism,
        device=device,
        tf32=on,
        xla=xla,
    )
