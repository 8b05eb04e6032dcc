"""Weights of a network in torch, by their names, in the layouts of other frameworks. No framework is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy


def give_keras(net: Any, weights: Mapping[str, numpy.ndarray]) -> Any:
    """Set the weights of the same recipe's network of Keras's: all of them."""
    names = {"gamma": "weight", "beta": "bias", "kernel": "weight", "bias": "bias"}
    assigned = set()
    for variable in net.trainable_variables:
        layer, kind = variable.path.split("/")[-2:]
        name = f"{layer.replace('_', '.')}.{names[kind]}"
        weight = weights[name]
        if weight.ndim == 4:  # filters [out, in, h, w] to [h, w, in, out]
            weight = weight.transpose((2, 3, 0, 1) if "depthwise" in variable.path else (2, 3, 1, 0))
        if weight.shape == (128, 9216):  # of MNIST's images torch flattens [64, 12, 12], Keras [12, 12, 64]
            weight = weight.reshape(128, 64, 12, 12).transpose(0, 2, 3, 1).reshape(128, -1)
        variable.assign(weight.T if weight.ndim == 2 else weight)
        assigned.add(name)
    assert assigned == set(weights)
    return net


def give_paddle(net: Any, weights: Mapping[str, numpy.ndarray]) -> Any:
    """The same to a network of Paddle's."""
    for name, parameter in net.named_parameters():
        weight = weights[name]
        parameter.set_value(weight.T.copy() if weight.ndim == 2 else weight)
    return net
