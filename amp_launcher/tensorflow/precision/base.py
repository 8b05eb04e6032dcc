"""What carries a precision level out in TensorFlow: a mechanism, one class each, under the calls of `Precision`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy
import tensorflow as tf

from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.precision.scalers import ScalePerOptimizer
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.tensorflow.hardware import capability_of
from amp_launcher.tensorflow.precision import grappler, replicas
from amp_launcher.tensorflow.precision.gradients import Gradient, map_gradients, map_values, sum_rows, values
from amp_launcher.tensorflow.precision.loss_scale import LossScaler, NoScale, make_scaler

Apply = Callable[[list[Gradient | None]], Any]
"""Steps an optimizer by gradients that are averaged, unscaled and clipped."""


class Mechanism:
    """A precision level. This class is o0, float32; a subclass carries out each other level.

    `resolved` has all settings; `level`, `dtype` (float32 at o0) and `device` (cpu or cuda) are some of them.
    """

    by_level: ClassVar[Mapping[str, type[Mechanism]]]
    """The class for each level, from the package's `__init__`."""
    policy = "float32"
    """Keras's name for the dtypes of layers and variables."""

    def __init__(self, resolved: ResolvedPrecision) -> None:
        self.resolved, self.level, self.dtype, self.device = resolved, resolved.level, resolved.dtype, resolved.device
        self.kept: tuple[str, ...] = ()
        """Names of the layers that `amp.keep_fp32` keeps in float32, once a model was cast."""
        self._strategy = tf.distribute.get_strategy()
        self._scaler: NoScale | LossScaler | ScalePerOptimizer = make_scaler(resolved.loss_scale)

    @classmethod
    def of(
        cls,
        amp: Amp,
        loss_scale: LossScale,
        device: str,
        *,
        tf32: bool | None = None,
        xla: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Mechanism:
        """The level of `amp`, resolved for `device` (cpu or cuda) and applied as by `apply`.

        `tf32` None is off at o0 and on elsewhere; `xla` says that XLA will compile. Raises `SettingsError` for what
        can't be had.
        """
        capability = capability_of(device)
        return cls.apply(
            resolve(
                amp,
                loss_scale,
                framework="tensorflow",
                device=device,
                capability=capability,
                environ=environ,
                tf32=tf32,
                xla=xla,
            )
        )

    @classmethod
    def apply(cls, resolved: ResolvedPrecision) -> Mechanism:
        """The resolved level, with TensorFlow's switches for the whole process set to it.

        Raises `SettingsError` for an operation of the lists that TensorFlow doesn't have.
        """
        mechanism = cls.by_level[resolved.level]
        mechanism._switch(resolved)
        return mechanism(resolved)

    @classmethod
    def _switch(cls, resolved: ResolvedPrecision) -> None:
        """TF32 and the graph rewrites: here none, also where an earlier level left them on."""
        tf.config.experimental.enable_tensor_float_32_execution(resolved.tf32)
        grappler.switch_off()

    def cast(self, make: Callable[[], keras.Model]) -> keras.Model:
        """Call `make`, which returns a model with its variables built, and return that model in the level's dtypes.

        Keras chooses dtypes as it makes layers, so this takes a function and not a model. Raises as `adopt` does.
        """
        self._check_strategy("making a model", tf.distribute.get_strategy())
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            model = self._make(make)
        finally:
            keras.config.set_dtype_policy(before)
        self.adopt(model)
        return model

    def adopt(self, model: keras.Model) -> None:
        """Take a model that was made in the level's dtypes.

        Raises `SettingsError` for a pattern of `amp.keep_fp32` that matches no layer, and `RuntimeError` for a model
        without variables, for a layer of other dtypes, and in the scope of another strategy than this precision was
        made in.
        """
        self._check_strategy("preparing a model", tf.distribute.get_strategy())
        if not model.trainable_variables:
            raise RuntimeError(
                "the model has no variables yet: begin it with keras.Input(shape), or call model.build(shape) where it "
                "is made"
            )
        for layer in (layer for layer in model._flatten_layers() if layer.variables):
            if layer.dtype_policy.name != self.policy and not isinstance(layer, keras.Model):
                raise RuntimeError(
                    f"layer {layer.name} has dtype policy {layer.dtype_policy.name}, and amp={self.level} gives it "
                    f"{self.policy}: make all layers in a function, without a dtype of their own, and say "
                    "model, optimizer = precision.prepare(make_model, optimizer)"
                )
        self._keep_float32(model)

    def _check_strategy(self, call: str, strategy: tf.distribute.Strategy) -> None:
        """Variables made outside of a strategy's scope are shared by its replicas, and each would update them."""
        if strategy is not self._strategy:
            raise RuntimeError(
                f"{call} runs under {_name(strategy)}, but this precision was made under {_name(self._strategy)}: make "
                "precision, model and optimizer in one strategy's scope, as in `with strategy.scope(): precision = "
                "Precision(); model, optimizer = precision.prepare(make_model, optimizer)`"
            )

    def _make(self, make: Callable[[], keras.Model]) -> keras.Model:
        return make()

    def _keep_float32(self, model: keras.Model) -> None:
        pass

    def optimizer(self, model: keras.Model | Sequence[Any], optimizer: keras.Optimizer) -> keras.Optimizer:
        """Prepare `optimizer` to step the model's trainable variables, and return it. Once for each optimizer.

        `model` is a model, or a sequence of variables to step only these. Raises `RuntimeError` for an optimizer that
        scales the loss itself, and in the scope of another strategy than this precision was made in.
        """
        self._check_strategy("preparing an optimizer", tf.distribute.get_strategy())
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor is not None:
            raise RuntimeError("this optimizer scales the loss itself; give its inner optimizer")
        optimizer.build(list(model.trainable_variables if isinstance(model, keras.Model) else model))
        replicas.disable_reduction(optimizer)
        self._scaler.add(optimizer)
        return optimizer

    @contextlib.contextmanager
    def forward(self, after: Sequence[Gradient | None] | None = None) -> Iterator[tf.GradientTape]:
        """A context for everything from the model's inputs to the loss, but not for backward and step.

        `after` is the list of gradients of the previous micro-batch. This one starts when they are computed, so that
        the activations of one micro-batch are in memory at a time.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            self._check_strategy("a step", strategy)
        before = [values(gradient) for gradient in after or () if gradient is not None]
        with tf.control_dependencies(before), tf.GradientTape(persistent=True) as tape:
            yield tape

    def input(self, tensor: Any) -> Any:
        """A model's inputs, a tensor or a structure of tensors, in the level's dtype."""
        return tensor

    def output(self, tensor: Any) -> Any:
        """A model's outputs, a tensor or a structure of tensors, in float32, as losses and metrics need them."""
        return map_floats(lambda part: tf.cast(part, tf.float32), tensor)

    def gradients(
        self, tape: tf.GradientTape, loss: tf.Tensor, optimizers: Sequence[keras.Optimizer]
    ) -> list[list[Gradient | None]]:
        """Gradients of the scaled loss with respect to the variables of optimizers that share a loss scale: a list for
        each. That of an embedding is `tf.IndexedSlices`, or dense under XLA."""
        variables = [[variable.value for variable in optimizer._trainable_variables] for optimizer in optimizers]
        scale = self._scaler.of(optimizers[0]).current()
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        return [self.received(own, dense=self.resolved.xla) for own in gradients]

    def received(self, gradients: list[Gradient | None], dense: bool) -> list[Gradient | None]:
        """The gradients of a backward as they are summed, unscaled and applied.

        `dense` is for XLA, which needs static shapes: `tf.IndexedSlices` has as many rows as were looked up.
        """
        return map_gradients(tf.convert_to_tensor, gradients) if dense else gradients

    def step_all(
        self, steps: Sequence[tuple[keras.Optimizer, Sequence[Gradient | None], Apply]], clip: float | None = None
    ) -> StepOutcome:
        """Average over the replicas, unscale, clip, and step each optimizer unless its gradients overflowed.

        `steps` has each one's gradients and the function that applies them. `clip` is the largest norm of all gradients
        together: where one overflowed, that norm is unknown, and all skip.
        """
        scales, overflows, all_gradients = [], [], []
        for optimizer, gradients, _ in steps:
            scaler = self._scaler.of(optimizer)
            scales.append(scaler.current())
            all_gradients.append(scaler.unscale(map_gradients(sum_rows, replicas.mean(gradients))))
        arrays = [[values(part) for part in gradients if part is not None] for gradients in all_gradients]
        if scales[0] is not None:
            overflows = [tf.logical_not(_finite(own)) for own in arrays]
            if clip is not None and len(steps) > 1:
                overflows = [tf.reduce_any(overflows)] * len(steps)
            for (optimizer, _, _), overflowed in zip(steps, overflows, strict=True):
                self._scaler.of(optimizer).record(overflowed)
        norm = None
        if clip is not None:
            norm = tf.linalg.global_norm([tf.cast(array, tf.float32) for own in arrays for array in own])
            # As torch clips: https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
            factor = tf.minimum(1.0, clip / (norm + 1e-6))
            all_gradients = [
                map_values(lambda part: part * tf.cast(factor, part.dtype), gradients) for gradients in all_gradients
            ]
        for number, (_, _, apply) in enumerate(steps):
            replicas.apply(apply, all_gradients[number], unless=overflows[number] if overflows else None)
        if not overflows:
            return StepOutcome(grad_norm=norm)
        joint = (overflows[0], scales[0]) if len(steps) == 1 else (tf.reduce_any(overflows), tf.reduce_min(scales))
        return StepOutcome(overflowed=joint[0], loss_scale=joint[1], grad_norm=norm)

    def scaler(self, optimizer: keras.Optimizer) -> NoScale | LossScaler:
        """The loss scale of an optimizer."""
        return self._scaler.of(optimizer)

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
        """The loss scale and its counts: the state that is in no variable of model and optimizers."""
        return {"level": self.level, "dtype": self.dtype, "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises `SettingsError` for one of another level, dtype or loss scale."""
        check_saved_level(state, self.level, self.dtype)
        self._scaler.load_state_dict(state["scaler"])


def _finite(arrays: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(array)) for array in arrays])


TENSORS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)
ARRAYS = (numpy.ndarray, numpy.generic, tf.Variable, keras.Variable)
MASK = "_keras_mask"
"""Where Keras keeps the mask of a layer's output; a test sees that it is there."""


def map_floats(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to every floating-point tensor and array in it, at any depth of what `tf.nest`
    knows and of dataclasses. Everything else stays as it is; a tensor keeps its mask."""

    def changed(part: Any) -> Any:
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
            return dataclasses.replace(part, **{name: map_floats(change, field) for name, field in fields.items()})
        if isinstance(part, ARRAYS):
            part = tf.convert_to_tensor(part)
        if not isinstance(part, TENSORS) or not part.dtype.is_floating:
            return part
        result = change(part)
        if result is not part and getattr(part, MASK, None) is not None:
            setattr(result, MASK, getattr(part, MASK))
        return result

    return tf.nest.map_structure(changed, value)


def _name(strategy: tf.distribute.Strategy) -> str:
    return type(strategy).__name__.lstrip("_")  # outside of any scope: DefaultDistributionStrategy
