"""What carries out o1, o2 and o3: subclasses of `Precision`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import keras
import tensorflow as tf

from recipes.precision import levels, operations
from recipes.precision.levels import Amp
from recipes.tensorflow_.precision import grappler
from recipes.tensorflow_.precision.base import Precision, of_floats
from recipes.tensorflow_.precision.gradients import Gradient, mapped
from recipes.typed import SettingsError, nearest

KEPT = "kept_in_float32"
"""The scope that the operations of kept layers are named in, by which they are known in the graph."""


class GraphRewrite(Precision, level="o1"):
    """o1: the model is float32, and Grappler rewrites its graph by operation lists."""

    @classmethod
    def prepare(cls, amp: Amp, dtype: str) -> None:
        lists = levels.named_operations(amp)
        for key, names in lists.items():
            for name in names:
                if not hasattr(tf.raw_ops, name):
                    near = nearest(name, dir(tf.raw_ops))
                    raise SettingsError(
                        f"amp.{key}: TensorFlow {tf.__version__} has no operation {name}{near}", f"amp.{key}"
                    )
        grappler.switch_on(dtype, operations.tensorflow_lists(lists))

    def input(self, tensor: Any) -> Any:
        """In float32: a batch is cast when it is here.

        On a CPU the rewrite would cast the whole data set that it was gathered from, in every step.
        """
        return of_floats(_apart, tensor)

    def output(self, tensor: Any) -> Any:
        """In float32, as the loss is computed: on a CPU the rewrite would go on into a softmax, and into an argmax."""
        return of_floats(_apart, super().output(tensor))

    def _handed_on(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """In float32, as they are added up and stepped with: on a CPU the rewrite would go on into both."""
        return [None if each is None else mapped(_apart, each) for each in gradients]


def _apart(tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, where the rewrite ends that goes on from a product: behind it only `amp.allow` lowers anything.

    Grappler leaves this operation where it is and as it is. An Identity is taken away, and so is an IdentityN of which
    one output is used; casts are moved across an EnsureShape, and across the gather before it.
    """
    return tf.compat.v1.placeholder_with_default(tensor, tensor.shape)


class MixedPolicy(Precision, level="o2"):
    """o2: layers compute in half precision, and their variables are float32, so they are their own masters."""

    @property
    def policy(self) -> str:  # type: ignore[override]
        return f"mixed_{self.dtype}"

    def _keep(self, model: keras.Model) -> None:
        self.kept = matching(model, self.amp.keep_fp32)
        names = _names(model)
        for layer in model._flatten_layers():
            if names.get(id(layer)) in self.kept:
                layer.dtype_policy = "float32"
                _name_operations(layer)


class HalfPolicy(Precision, level="o3"):
    """o3: half precision throughout, variables and inputs included. Only the loss is float32."""

    @property
    def policy(self) -> str:  # type: ignore[override]
        return self.dtype

    def _make(self, make: Callable[[], keras.Model]) -> keras.Model:
        """With the weights that every other level begins with, rounded: in half precision Keras draws other numbers."""
        state = random.getstate()  # that layers take their seeds from
        keras.config.set_dtype_policy("float32")
        drawn = make().get_weights()
        random.setstate(state)
        keras.config.set_dtype_policy(self.policy)
        model = make()
        model.set_weights(drawn)
        return model

    def input(self, tensor: Any) -> Any:
        return of_floats(lambda each: tf.cast(each, self.dtype), tensor)


def matching(model: keras.Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the layers that a pattern matches, those inside of a match among them: `head`, `block1.conv`.

    Raises `SettingsError` for a pattern that matches none.
    """
    names = list(_names(model).values())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SettingsError(
                f"amp.keep_fp32: {pattern} matches no layer{nearest(pattern, names)} "
                f"(its layers: {', '.join(names[:12])}{', ...' * (len(names) > 12)})",
                "amp.keep_fp32",
            )
    return tuple(name for name in names if any(within(name, pattern) for pattern in patterns))


def within(name: str, pattern: str) -> bool:
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))


def _names(model: keras.Model, prefix: str = "") -> dict[int, str]:
    """The dotted name of each layer inside of the model, by its id."""
    found: dict[int, str] = {}
    for layer in model._flatten_layers(include_self=False, recursive=False):
        if isinstance(layer, keras.layers.InputLayer):
            continue
        name = f"{prefix}{layer.name}"
        found[id(layer)] = name
        found.update(_names(layer, f"{name}."))
    return found


def _name_operations(layer: keras.Layer) -> None:
    call = layer.call

    def named(*arguments: Any, **named_arguments: Any) -> Any:
        with tf.name_scope(f"{KEPT}.{layer.name}."):  # the dots end the name: TensorFlow adds _1 to a scope used before
            return call(*arguments, **named_arguments)

    layer.call = named
