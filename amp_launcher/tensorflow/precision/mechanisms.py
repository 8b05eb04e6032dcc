"""The mechanisms of o1, o2 and o3: subclasses of `Mechanism`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.precision.operations import TENSORFLOW_LISTS
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.tensorflow.precision import grappler
from amp_launcher.tensorflow.precision.base import Mechanism, map_floats
from amp_launcher.tensorflow.precision.gradients import Gradient, map_values
from amp_launcher.typed import SettingsError, nearest

KEPT = "kept_in_float32"
"""Scope in the names of the operations of layers kept in float32, by which observation finds them in a graph."""


class GraphRewrite(Mechanism):
    """o1: the model is float32, and Grappler rewrites its graphs by operation lists.

    On a CPU the rewrite goes beyond a product, both before and behind it: it would cast the whole data set that a
    batch is gathered from, and lower losses, metrics, sums of gradients and optimizer steps. So `input`, `output` and
    gradients pass a barrier that it doesn't cross. Beyond the barriers only `amp.allow` lowers an operation.
    """

    @classmethod
    def _switch(cls, resolved: ResolvedPrecision) -> None:
        super()._switch(resolved)
        grappler.switch_on(resolved.dtype, {key: getattr(resolved, key) for key in TENSORFLOW_LISTS})

    def input(self, tensor: Any) -> Any:
        return map_floats(_barrier, tensor)

    def output(self, tensor: Any) -> Any:
        return map_floats(_barrier, super().output(tensor))

    def received(self, gradients: list[Gradient | None], dense: bool) -> list[Gradient | None]:
        return map_values(_barrier, super().received(gradients, dense))


def _barrier(tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, behind an operation that the rewrite doesn't cross.

    Grappler leaves this operation as it is. It removes an Identity, and an IdentityN of which one output is used, and
    moves casts across an EnsureShape and across the gather before it.
    """
    return tf.compat.v1.placeholder_with_default(tensor, tensor.shape) if isinstance(tensor, tf.Tensor) else tensor


class MixedPolicy(Mechanism):
    """o2: layers compute in half precision; their variables are float32, and so are their own masters."""

    @property
    def policy(self) -> str:  # type: ignore[override]
        return f"mixed_{self.dtype}"

    def _keep_float32(self, model: keras.Model) -> None:
        self.kept = matching(model, self.resolved.amp.keep_fp32)
        names = layer_names(model)
        for layer in model._flatten_layers():
            if names.get(id(layer)) in self.kept:
                layer.dtype_policy = "float32"
                _name_operations(layer)


class HalfPolicy(Mechanism):
    """o3: half precision throughout, variables and inputs included. Only the loss is float32."""

    @property
    def policy(self) -> str:  # type: ignore[override]
        return self.dtype

    def _make(self, make: Callable[[], keras.Model]) -> keras.Model:
        """With the initial weights of the other levels, rounded: Keras draws other numbers in half precision."""
        state = random.getstate()  # from which layers draw their seeds
        keras.config.set_dtype_policy("float32")
        weights = make().get_weights()
        random.setstate(state)
        keras.config.set_dtype_policy(self.policy)
        model = make()
        model.set_weights(weights)
        return model

    def input(self, tensor: Any) -> Any:
        return map_floats(lambda part: tf.cast(part, self.dtype), tensor)


def matching(model: keras.Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the layers that match a pattern, and of the layers inside of them: `head`, `block1.conv`.

    Raises `SettingsError` for a pattern that matches no layer.
    """
    names = list(layer_names(model).values())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SettingsError(
                f"amp.keep_fp32: {pattern} matches no layer{nearest(pattern, names)} "
                f"(its layers: {', '.join(names[:12])}{', ...' * (len(names) > 12)})"
            )
    return tuple(name for name in names if any(within(name, pattern) for pattern in patterns))


def within(name: str, pattern: str) -> bool:
    """Whether a dotted name, or the name of a layer around it, matches the pattern."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))


def layer_names(model: keras.Model, prefix: str = "") -> dict[int, str]:
    """The dotted name of each layer of the model, by the layer's id."""
    names: dict[int, str] = {}
    for layer in model._flatten_layers(include_self=False, recursive=False):
        if isinstance(layer, keras.layers.InputLayer):
            continue
        name = f"{prefix}{layer.name}"
        names[id(layer)] = name
        names.update(layer_names(layer, f"{name}."))
    return names


def _name_operations(layer: keras.Layer) -> None:
    """Give the layer's operations a scope that `graphs.layer_of` recognises."""
    call = layer.call

    def call_in_scope(*arguments: Any, **keywords: Any) -> Any:
        with tf.name_scope(
            f"{KEPT}.{layer.name}."
        ):  # the last dot ends the name: TensorFlow appends _1 to a used scope
            return call(*arguments, **keywords)

    layer.call = call_in_scope
