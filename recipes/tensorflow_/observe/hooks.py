"""Methods of Keras and TensorFlow replaced while a script runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from recipes.tensorflow_.observe.graphs import STEPS
from recipes.trainer.replaced import replaced


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


def naming_kerass_steps() -> AbstractContextManager[None]:
    """Name Keras's loop over the steps of one execution like ours: it is not a loop of the model."""
    original = tf.while_loop

    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        name, module = getattr(body, "__qualname__", ""), getattr(body, "__module__", "")
        if "multi_step_on_iterator" in name and module.startswith("keras."):
            kwargs["name"] = STEPS
        return original(cond, body, *args, **kwargs)

    return replaced(tf, "while_loop", while_loop)
