"""What a script saves is enough: `model.state_dict()` and `optimizer.state_dict()` resume bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from amp_launcher.precision.levels import LossScale
from tests.amp_launcher.torch.loops import backward, of, same, sgd, stepped, stored

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
SCALE = LossScale(mode="dynamic", init=2.0**20, growth_every=3)
MODES: dict[str, dict[str, Any]] = {
    "o2": {"level": "o2"},
    "o2 in float16": {"level": "o2", "dtype": "float16", "scale": SCALE},
    "o1 in float16": {"level": "o1", "dtype": "float16", "scale": SCALE},
    "a scale for each": {"level": "o2", "dtype": "float16", "scale": LossScale(mode="dynamic", per_optimizer=True)},
    "o3": {"level": "o3"},
    "o2 without masters": {"level": "o2", "master_weights": False},
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4),
    "SGD": lambda model: sgd(model, 1e-4),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=1e-4),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-4),
}
WITH_STATE = [OPTIMIZERS["AdamW"], OPTIMIZERS["Adagrad"], lambda model: sgd(model, 1e-4, momentum=0.9)]
EVERY_MODE = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
EVERY_OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.by


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4, bias=False), Scale())


class Training:
    """A network with its optimizer; `before` is called between the making of the two and `prepare`."""

    def __init__(self, mode: Any, make: Any, before: Callable[[Training], None] = lambda training: None) -> None:
        self.precision = of(**mode)
        self.model = network()
        self.optimizer = make(self.model)
        before(self)
        self.precision.prepare(self.model, self.optimizer)

    def steps(self, count: int, clip: float | None = None) -> Training:
        for _ in range(count):
            self.optimizer.zero_grad()
            for part in INPUTS.chunk(2):
                backward(self.precision, self.model, part)
            self.precision.step(self.optimizer, clip=clip)
        return self

    def values(self) -> list[torch.Tensor]:
        entries = [entry for _, entry in sorted(self.optimizer.state_dict()["state"].items())]
        state = [
            value for entry in entries for key, value in sorted(entry.items()) if key != "master" and value is not None
        ]
        counts = [float(self.precision.scale or 0), float(self.precision.skipped_total)]
        values = [*self.model.parameters(), *stepped(self.optimizer), *state, torch.tensor(counts)]
        return [value.detach().clone() for value in values]

    def load(self, saved: Any, order: int = 1) -> None:
        model, optimizer = copy.deepcopy(saved)  # torch keeps the tensors that an optimizer loads
        for part, state in ((self.model, model), (self.optimizer, optimizer))[::order]:
            part.load_state_dict(state)


@EVERY_OPTIMIZER
@EVERY_MODE
@pytest.mark.parametrize("steps", [0, 7])
def test_a_script_resumes_bit_for_bit_from_what_it_saves(mode: Any, make: Any, steps: int) -> None:
    one = Training(mode, make).steps(steps)
    saved = stored(one.model.state_dict(), one.optimizer.state_dict())
    first = one.values()
    end = one.steps(4).values()
    others = [
        Training(mode, make),
        Training(mode, make).steps(3),
        Training(mode, make),
        Training(mode, make, lambda training: training.load(saved)),
        Training(mode, make, lambda training: training.load(saved, -1)),
    ]
    for other, order in zip(others[:3], (1, 1, -1), strict=True):
        other.load(saved, order)
    for number, other in enumerate(others):
        assert same(other.values(), first), number
        assert same(other.steps(4).values(), end), number
        assert {parameter.dtype for parameter in one.model.parameters()} >= {
            parameter.dtype for group in other.optimizer.param_groups for parameter in group["params"]
        }


@EVERY_OPTIMIZER
@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flattened"])
@pytest.mark.parametrize("mode", list(MODES.values())[:3], ids=list(MODES)[:3])
def test_distributed_checkpoints_resume_bit_for_bit(mode: Any, make: Any, flat: bool, tmp_path: Path) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def state(training: Training) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(training.model),
            "optimizer": get_optimizer_state_dict(training.model, training.optimizer, options=options),
        }

    one = Training(mode, make).steps(7)
    dcp.save(state(one), checkpoint_id=str(tmp_path))
    end = one.steps(4).values()
    other = Training(mode, make)
    before = [*map(torch.clone, other.model.parameters()), *map(torch.clone, stepped(other.optimizer))]
    scale = other.precision.scale
    target = state(other)
    assert same([*other.model.parameters(), *stepped(other.optimizer)], before), "the step that makes the state"
    assert (other.precision.scale, other.precision.skipped_total) == (scale, 0)
    dcp.load(target, checkpoint_id=str(tmp_path))
    set_model_state_dict(other.model, target["model"])
    set_optimizer_state_dict(other.model, other.optimizer, target["optimizer"], options=options)
    assert same(other.steps(4).values(), end)


@pytest.mark.parametrize("make", WITH_STATE)
@pytest.mark.parametrize("mode", list(MODES.values())[:3], ids=list(MODES)[:3])
@pytest.mark.parametrize("cast", [False, True], ids=["before the cast", "between cast and optimizer"])
def test_a_distributed_checkpoint_loaded_before_there_is_what_it_saved_is_refused(mode, make, cast, tmp_path) -> None:
    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        target = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(target, checkpoint_id=str(tmp_path))
        set_model_state_dict(model, target["model"])
        set_optimizer_state_dict(model, optimizer, target["optimizer"])

    one = Training(mode, make).steps(7)
    model, optimizer = get_model_state_dict(one.model), get_optimizer_state_dict(one.model, one.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=str(tmp_path))
    with pytest.raises(RuntimeError, match=r"load it after model, optimizer = precision\.prepare"):
        if not cast:
            Training(mode, make, lambda training: load(training.model, training.optimizer))
        else:
            precision = of(**mode)
            net = precision.prepare(network())
            adam = make(net)
            load(net, adam)
            precision.prepare(adam)


@EVERY_OPTIMIZER
@pytest.mark.parametrize("steps", [0, 3])
def test_plain_torch_loads_what_o2_saved_and_o2_what_plain_torch_saved(make: Any, steps: int) -> None:
    one = Training(MODES["o2"], make).steps(steps)
    saved = stored(one.model.state_dict(), one.optimizer.state_dict())
    plain = Training({"level": "o0"}, make)
    plain.load(saved)
    plain.steps(2)
    for own, master in zip(plain.model.parameters(), stepped(one.steps(2).optimizer), strict=True):
        assert torch.allclose(own, master, atol=0.01)
    back = Training(MODES["o2"], make).steps(1)
    back.load((plain.model.state_dict(), plain.optimizer.state_dict()))
    for master, own in zip(stepped(back.optimizer), plain.model.parameters(), strict=True):
        assert torch.allclose(master, own, rtol=2**-7)
    back.steps(1)


def test_a_load_between_the_cast_and_the_optimizer_is_refused() -> None:
    one = Training(MODES["o2"], OPTIMIZERS["AdamW"]).steps(1)
    precision = of()
    model = precision.prepare(network())
    optimizer = OPTIMIZERS["AdamW"](model)
    optimizer.load_state_dict(one.optimizer.state_dict())
    with pytest.raises(RuntimeError, match="load it before both or after both"):
        precision.prepare(optimizer)


@pytest.mark.parametrize("make", WITH_STATE)
def test_a_state_without_a_loss_scale_is_loaded_after_prepare(make: Any) -> None:
    plain = Training({"level": "o0"}, make).steps(2)
    other = Training(MODES["o1 in float16"], make)
    other.load(stored(plain.model.state_dict(), plain.optimizer.state_dict()))
    assert same(other.values()[:-1], plain.values()[:-1])
    assert other.precision.scale == SCALE.init


def test_a_load_that_fails_leaves_all_as_it_was() -> None:
    one = Training(MODES["o2"], OPTIMIZERS["AdamW"]).steps(2)
    before = one.values()
    state = one.optimizer.state_dict()
    with pytest.raises(ValueError, match="parameter group"):
        one.optimizer.load_state_dict({**state, "param_groups": state["param_groups"] * 2})
    with pytest.raises(RuntimeError, match="size mismatch"):
        one.model.load_state_dict({**one.model.state_dict(), "0.bias": torch.zeros(1)})
    assert same(one.values(), before)


def test_frozen_parameters_thawed_after_resuming_have_their_masters() -> None:
    def freeze(training: Training, frozen: bool) -> Training:
        training.model[2].weight.requires_grad_(not frozen)
        return training

    one = freeze(Training(MODES["o2"], OPTIMIZERS["AdamW"]), True).steps(2)
    saved = stored(one.model.state_dict(), one.optimizer.state_dict())
    other = freeze(Training(MODES["o2"], OPTIMIZERS["AdamW"]), True)
    other.load(saved)
    plain = Training({"level": "o0"}, OPTIMIZERS["AdamW"])
    plain.load(saved)
    plain.steps(1)
    for training in (one, other):
        freeze(training.steps(1), False).steps(3)
    assert same(one.values(), other.values())


def test_groups_and_parameters_that_come_later_are_stepped_and_resumed() -> None:
    def made() -> Training:
        training = Training(MODES["o2"], lambda model: torch.optim.AdamW([model[0].weight], lr=1e-4))
        training.optimizer.add_param_group({"params": [training.model[2].weight], "lr": 1e-3})
        training.optimizer.param_groups[0]["params"].append(training.model[0].bias)
        return training

    one = made().steps(2)
    assert same([master.bfloat16() for master in stepped(one.optimizer)], [
        parameter for group in one.optimizer.param_groups for parameter in group["params"]
    ])  # fmt: skip
    saved = stored(one.model.state_dict(), one.optimizer.state_dict())
    other = made()
    other.load(saved)
    for training in (one, other):
        training.optimizer.param_groups[1]["params"].append(training.model[1].weight)
        training.steps(2)
    assert same(one.values(), other.values())
    assert torch.optim.lr_scheduler.StepLR(one.optimizer, 1).get_last_lr() == [1e-4, 1e-3]


@pytest.mark.parametrize("reset", ["cleared", "replaced", "zeroed"])
def test_a_users_own_changes_of_the_state_hold_and_leave_the_masters(reset: str) -> None:
    one = Training(MODES["o2"], OPTIMIZERS["AdamW"]).steps(3)
    masters = [master.clone() for master in stepped(one.optimizer)]
    if reset == "cleared":
        one.optimizer.state.clear()
    elif reset == "replaced":
        one.optimizer.state = type(one.optimizer.state)(dict)
    else:
        for entry in one.optimizer.state.values():
            for value in entry.values():
                value.zero_()
    assert same(stepped(one.optimizer), masters) or reset == "zeroed"
    one.steps(1)
    assert {float(entry["step"]) for entry in one.optimizer.state.values()} == {1.0}
    assert all(0 < (now - then).abs().max() < 1e-2 for now, then in zip(stepped(one.optimizer), masters, strict=True))


@EVERY_MODE
def test_copies_of_an_optimizer_and_a_model_are_plain_ones(mode: Any) -> None:
    def keep_more(training: Training) -> None:
        training.optimizer.state[99] = {"of no parameter": torch.tensor(1.0)}

    one = Training(mode, OPTIMIZERS["AdamW"], keep_more).steps(2)
    model, optimizer = copy.deepcopy((one.model, one.optimizer))
    before = one.values()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    if mode["level"] == "o1":
        optimizer.step()
    assert same(one.values(), before)
