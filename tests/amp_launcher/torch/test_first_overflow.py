"""An overflow in the first step, in memory whose uninitialised values are NaN, leaves nothing behind.

A fused kernel returns at once where gradients overflowed, so it initialises no state: `_fused_sgd` makes its momentum
by `empty_like`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from amp_launcher.precision.levels import LossScale
from tests.amp_launcher.torch import loops

MODES = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "dampening": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.001, momentum=0.9),
    "Adadelta": torch.optim.Adadelta,
    "NAdam": torch.optim.NAdam,
}
FUSED = ("SGD", "momentum", "dampening", "nesterov", "Adam", "AdamW", "Adagrad")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(1).isnan().item()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(False)


def weights(name: str, mode: str, level: str, skipped: int, late: bool = False) -> list[torch.Tensor]:
    """Weights after 8 good steps, of which `skipped` bad ones are ahead. With `late` the second layer's optimizer group
    is added after two more steps."""
    torch.manual_seed(0)
    precision = loops.of(level, "float16", LossScale(mode="dynamic", init=2.0**8, growth_every=1000))
    model = precision.prepare(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)))
    trained = model[0] if late else model
    optimizer = precision.prepare(OPTIMIZERS[name](trained.parameters(), **MODES[mode]))
    inputs, bad = torch.randn(4, 8), torch.full((4, 8), torch.inf)
    if late:
        for _ in range(2):
            loops.step(precision, model, optimizer, inputs)
        model.zero_grad()
        optimizer.add_param_group({"params": list(model[1].parameters())})
    for _ in range(skipped):
        assert loops.step(precision, model, optimizer, bad).overflowed
    for _ in range(8):
        assert not loops.step(precision, model, optimizer, inputs).overflowed
    return [weight.detach() for weight in precision.master_parameters().values()]


CASES = [(name, mode) for name in OPTIMIZERS for mode in MODES if mode != "fused" or name in FUSED]


@pytest.mark.parametrize("level", ["o1", "o2"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_bad_first_steps_leave_an_optimizer_as_they_found_it(name, mode, level):
    expected = weights(name, mode, level, skipped=0)
    assert all(weight.isfinite().all() for weight in expected)
    assert loops.same(weights(name, mode, level, skipped=2), expected)


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_bad_first_step_of_a_later_group_leaves_nothing_of_it(level):
    expected = weights("momentum", "fused", level, skipped=0, late=True)
    assert loops.same(weights("momentum", "fused", level, skipped=1, late=True), expected)
