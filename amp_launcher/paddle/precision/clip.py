"""The gradients that optimizers are about to step by: multiplied, and clipped to one norm over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import paddle


def parameters(optimizer: Any) -> Iterator[paddle.Tensor]:
    """What an optimizer steps."""
    for group in optimizer._parameter_list or ():
        yield from group["params"] if isinstance(group, dict) else [group]


def _gradients(optimizers: Iterable[Any]) -> list[paddle.Tensor]:
    """Each one once, itself and not a copy."""
    stepped = {id(parameter): parameter for optimizer in optimizers for parameter in parameters(optimizer)}
    return [parameter.grad_ for parameter in stepped.values() if parameter.grad_ is not None]


def multiply(optimizers: Iterable[Any], factor: paddle.Tensor) -> None:
    """Multiply these optimizers' gradients, in place."""
    with paddle.no_grad():
        for gradient in _gradients(optimizers):
            gradient.multiply_(factor.astype(gradient.dtype))


def clip_norm(optimizers: Iterable[Any], largest: float) -> paddle.Tensor:
    """Scale these optimizers' gradients, in place, to a norm of at most `largest` over all of them; returns the norm
    before, a float32 scalar. Paddle's own takes the norm in the gradients' dtype, and fails where there are two."""
    squares = [gradient.detach().astype("float32").square().sum() for gradient in _gradients(optimizers)]
    norm = paddle.stack(squares or [paddle.zeros([])]).sum().sqrt()
    multiply(optimizers, (largest / (norm + 1e-6)).clip(max=1.0))
    return norm
