"""What is replaced in Keras and TensorFlow while a script is observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from amp_launcher.around.replaced import replaced
from amp_launcher.precision.observation import Guard
from amp_launcher.tensorflow.observe.graphs import STEPS
from amp_launcher.tensorflow.precision.mechanisms import KEPT

CHOSEN = "_script_chose_float32"
"""Attribute of a layer whose dtype the script set to float32."""


def after(owner: type[Any], name: str, callback: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Call `callback` with the object after each call of this method.

    The method has no `__wrapped__`: Keras reads the arguments of an `__init__` by inspect.signature, which follows
    it, and by inspect.getfullargspec, which does not, and takes the two to agree.
    """
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        callback(self)
        return result

    return replaced(owner, name, method)


def naming_kerass_steps(guard: Guard) -> AbstractContextManager[None]:
    """Name Keras's loop over the steps of one execution like ours: it is not a loop of the model."""
    original, is_of_steps = tf.while_loop, guard.hook(_is_kerass_step)

    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        if is_of_steps(body):
            kwargs["name"] = STEPS
        return original(cond, body, *args, **kwargs)

    return replaced(tf, "while_loop", while_loop)


def _is_kerass_step(body: Any) -> bool:
    name, module = getattr(body, "__qualname__", ""), getattr(body, "__module__", "")
    return "multi_step_on_iterator" in name and module.startswith("keras.")


def naming_chosen_layers(owner: type[Any], guard: Guard) -> AbstractContextManager[None]:
    """Give the operations of layers that the script set to float32 the scope of those of `amp.keep_fp32`.

    Not those of a layer that contains half-precision layers, which would get it too, nor of one of tf_keras that is
    about to make its variables, whose names would have the scope.
    """
    original, is_float32 = owner.__call__, guard.hook(_is_chosen)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(KEPT) if is_float32(self) else contextlib.nullcontext():
            return original(self, *args, **kwargs)

    return replaced(owner, "__call__", call)


def _is_chosen(layer: Any) -> bool:
    return (
        getattr(layer, CHOSEN, False)
        and (layer.built or isinstance(layer, keras.Layer))
        and all(inner.compute_dtype == "float32" for inner in layer._flatten_layers())
    )


@contextlib.contextmanager
def once_begun(begun: Callable[[], None]) -> Iterator[None]:
    """Call `begun` as soon as TensorFlow's devices are initialised, at once if they are."""
    if context.context()._initialized:
        begun()
        yield
        return
    original = context.Context.ensure_initialized

    def begin(self: context.Context) -> None:
        original(self)
        if context.Context.ensure_initialized is begin:
            context.Context.ensure_initialized = original
            begun()

    context.Context.ensure_initialized = begin
    try:
        yield
    finally:
        context.Context.ensure_initialized = original
