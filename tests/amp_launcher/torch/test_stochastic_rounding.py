"""o3 with amp.rounding=stochastic: the arithmetic, training, resuming, and what the observer makes of it."""

from __future__ import annotations

import asyncio
import copy
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from amp_launcher.precision.levels import Amp
from amp_launcher.recipes.data import tokens
from amp_launcher.recipes.gpt import train_torch as trainer
from amp_launcher.torch import loop
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import stochastic_rounding
from amp_launcher.torch.precision.stochastic_rounding import StochasticRounding, round_up_or_down
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import HALVES, of, same, step
from tests.amp_launcher.torch.observed_runs import Dense, Training, proved
from tests.amp_launcher.torch.trainers import differences, last_state, result, steps

STOCHASTIC = Amp(level="o3", dtype="bfloat16", rounding="stochastic")
O3 = Amp(level="o3", dtype="bfloat16")
EVERY_NOISE = torch.arange(2**16, dtype=torch.int32)
SMALL = (
    *("train.layers=2", "train.width=32", "train.heads=2", "train.context=16", "train.held_out=4"),
    *("batch=4", "checkpoint.every=0", "amp=o3", "accumulate=2"),
)


def precision_of(amp: Amp):
    return of(amp.level, amp.dtype, rounding=amp.rounding)


def from_bits(bits: int) -> torch.Tensor:
    return torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32)


# The arithmetic


@given(st.integers(0, 2**32 - 1))
def test_every_float32_becomes_a_neighbour_and_the_mean_over_all_noise_is_exact(bits):
    value = from_bits(bits)
    rounded = round_up_or_down(value.expand(2**16).clone(), EVERY_NOISE.clone())
    if value.isnan():
        assert rounded.isnan().all()
        return
    toward_zero = from_bits(bits & 0xFFFF0000)
    up = rounded.float() == from_bits((bits & 0xFFFF0000) + 0x10000)
    assert (up | (rounded.float() == toward_zero)).all()
    assert torch.equal(rounded.signbit(), value.expand(2**16).signbit())
    assert int(up.sum()) == bits & 0xFFFF  # in 65,536 parts: how far the value is from the one nearer to zero


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -0.15625, 2.0**-133, float("inf"), -float("inf")])
def test_what_bfloat16_has_stays_as_it_is(value):
    values = torch.full((2**16,), value)
    rounded = round_up_or_down(values.clone(), EVERY_NOISE.clone())
    assert torch.equal(rounded.float().view(torch.int32), values.view(torch.int32))


def test_the_layout_of_a_weight_is_kept():
    values = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    rounded = round_up_or_down(values, torch.empty_like(values, dtype=torch.int32).random_(0, 2**16))
    assert rounded.is_contiguous(memory_format=torch.channels_last)
    assert ((rounded.float() - values).abs() <= values.abs() * 2**-7).all()


# Training


def small_steps(amp: Amp, seed: int = 0) -> float:
    """How far 40 steps of SGD at a rate of 1e-4 lower the loss, measured in float32: most are too small a step for a
    half-precision weight to take."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs, labels = torch.randn(64, 16), torch.randint(0, 10, (64,))
    precision, judge = precision_of(amp), copy.deepcopy(model)
    precision.prepare(model)
    torch.manual_seed(seed)
    optimizer = precision.prepare(torch.optim.SGD(model.parameters(), lr=1e-4))

    def exact_loss() -> float:
        judge.load_state_dict(precision.master_parameters())
        with torch.no_grad():
            return cross_entropy(judge(inputs), labels).item()

    before = exact_loss()
    for _ in range(40):
        step(precision, model, optimizer, inputs, lambda outputs: cross_entropy(outputs, labels))
    return before - exact_loss()


def test_small_updates_survive_with_masters_or_stochastic_rounding_and_are_lost_without():
    float32 = small_steps(Amp(level="o0"))
    for dtype in HALVES:
        assert small_steps(Amp(level="o2", dtype=dtype)) == pytest.approx(float32, rel=0.05)
        assert small_steps(Amp(level="o3", dtype=dtype)) < 0.2 * float32
    drops = [small_steps(STOCHASTIC, seed) for seed in range(8)]
    assert sum(drops) / len(drops) == pytest.approx(float32, rel=0.05)
    assert all(drop == pytest.approx(float32, rel=0.25) for drop in drops)
    assert len(set(drops)) == len(drops) and small_steps(STOCHASTIC, 3) == drops[3]  # by seed


def copies_of(training: Training) -> list[torch.Tensor]:
    """What the optimizer steps, which takes no memory between steps, when the optimizer has the model's parameters."""
    (own,) = (group["params"] for group in training.optimizer.param_groups)
    assert [id(parameter) for parameter in own] == [id(parameter) for parameter in training.net.parameters()]
    copies = list(training.precision._mechanism._rounding._copies[training.optimizer].values())
    assert all(weight.untyped_storage().nbytes() == 4 and weight.grad is None for weight in copies)
    return copies


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.AdamW, torch.optim.RMSprop]
)
def test_any_optimizer_keeps_its_state_in_float32_and_no_float32_weights(make):
    training = Training(Dense, STOCHASTIC, make_optimizer=make)
    for _ in range(3):
        training.step()
    assert {weight.dtype for weight in training.net.parameters()} == {torch.bfloat16}
    values = [value for entry in training.optimizer.state_dict()["state"].values() for value in entry.values()]
    assert {value.dtype for value in values if torch.is_tensor(value)} <= {torch.float32}
    assert [weight.shape for weight in copies_of(training)] == [weight.shape for weight in training.net.parameters()]


def test_the_optimizer_clears_the_models_gradients_and_steps_parameters_that_come_later():
    training = Training(Dense, STOCHASTIC)
    late = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    training.optimizer.add_param_group({"params": [late], "lr": 1e-4})
    late.grad = torch.ones_like(late)
    training.step()
    assert 0.999 < late.float().mean() < 1 and late.grad is None
    with training.precision:
        loss = training.net(training.net.images()).sum()
    training.precision.backward(loss)
    training.optimizer.zero_grad(set_to_none=False)
    assert all(not weight.grad.any() for weight in training.net.parameters())


def test_a_kept_module_stays_in_float32_and_clipping_sees_all_gradients():
    norms = []
    for precision in (of("o3", "bfloat16", rounding="stochastic", keep_fp32=("second",)), of("o0")):
        torch.manual_seed(0)
        model = precision.prepare(Dense())
        assert model.second.weight.dtype == torch.float32
        optimizer = precision.prepare(torch.optim.SGD(model.parameters(), lr=0.01))
        norms.append(step(precision, model, optimizer, torch.ones(4, 32), clip=1e-3).grad_norm.item())
    assert norms[0] == pytest.approx(norms[1], rel=0.02)


def test_a_step_that_fails_leaves_the_weights_and_no_copies():
    training = Training(Dense, STOCHASTIC)
    before = [weight.detach().clone() for weight in training.net.parameters()]
    real, training.optimizer.step = training.optimizer.step, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        training.step()
    assert same(before, training.net.parameters())
    assert copies_of(training)
    training.optimizer.step = real
    training.step()


def test_a_checkpoint_that_was_rounded_otherwise_is_refused():
    nearest, stochastic = Training(Dense, O3), Training(Dense, STOCHASTIC)
    with pytest.raises(SettingsError, match=r"amp.rounding=stochastic, .* saved with amp.rounding=nearest"):
        stochastic.precision.load_state_dict(nearest.precision.state_dict())


# In a recipe


def test_a_recipe_is_proved_resumes_bit_by_bit_and_depends_on_its_seed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tokens, "LIBRARY", Path(asyncio.__file__).parent)

    def train(name: str, *words: str, rounding: str = "stochastic") -> int:
        return loop.main("gpt", trainer.train, [*SMALL, *words, f"amp.rounding={rounding}", f"run={tmp_path / name}"])

    assert train("whole", "steps=4") == loop.DONE
    assert [train("parts", "steps=4", "checkpoint.stop_every=2") for _ in range(2)] == [85, 0]
    whole, parts = last_state(tmp_path / "whole"), last_state(tmp_path / "parts")
    for key in ("model", "optimizers", "precision"):
        assert differences(whole[key], parts[key], key) == []
    assert whole["precision"]["rounding"]["steps"] == 4
    assert {weight.dtype for weight in whole["model"].values()} == {torch.bfloat16}
    record = result(tmp_path / "whole")
    assert (record["mechanism"], record["observed"]["verdict"]) == ("half_model_stochastic", "proved")
    assert "; weights rounded stochastically: " in record["observed"]["why"]
    capsys.readouterr()
    assert train("whole", "steps=5", rounding="nearest") == 2
    assert "amp.rounding=nearest, and" in capsys.readouterr().err
    assert train("other", "steps=4", "seed=1") == loop.DONE
    assert steps(tmp_path / "other") != steps(tmp_path / "whole")


# The observer


class Wide(Dense):
    """Enough weights to tell how they were rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 128), nn.Linear(128, 10)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rounding_is_proved_by_the_weights(compile):
    result = proved(Training(Wide, STOCHASTIC, make_optimizer=torch.optim.Adam, compile=compile).run())
    assert result["half_flop_share"] == 1
    assert result["param_dtypes"] == {"bfloat16": 32 * 128 + 128 + 128 * 10 + 10}


def contradicted(why: str, amp: Amp = STOCHASTIC) -> None:
    """What a run at `amp` shows an observer of stochastic rounding."""
    training = Training(Wide, amp, make_optimizer=torch.optim.Adam)
    training.observer = PrecisionObserver(training.net, precision_of(STOCHASTIC).resolved)
    result = training.run()
    assert (result["verdict"], why in result["why"]) == ("contradicted", True), result["why"]


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        (lambda values, noise: values.bfloat16(), "0 were rounded to the farther of the two, and stochastic rounding"),
        (lambda values, noise: round_up_or_down(values, 0 * noise), "0 were rounded away from zero, and stochastic"),
        (lambda values, noise: round_up_or_down(values, noise // 2), "were rounded away from zero, and stochastic"),
        (lambda values, noise: (values * 1.1).bfloat16(), "weights became neither of the two bfloat16 values"),
    ],
    ids=["to nearest", "toward zero", "half the noise", "somewhere else"],
)
def test_another_rounding_than_the_requested_one_is_contradicted(monkeypatch, rounds, why):
    monkeypatch.setattr(stochastic_rounding, "round_up_or_down", rounds)
    contradicted(why)


@pytest.mark.parametrize(
    ("amp", "why"),
    [
        (O3, "stepped bfloat16 weights, but amp.rounding=stochastic steps float32 ones"),
        (Amp(level="o2", dtype="bfloat16"), "float32 weights were stepped and not rounded stochastically"),
    ],
)
def test_another_mode_than_stochastic_rounding_is_contradicted(amp, why):
    contradicted(why, amp)


def test_masters_behind_the_rounding_are_contradicted(monkeypatch):
    kept: dict[torch.Tensor, torch.Tensor] = {}
    real = StochasticRounding.expand

    def expand(self, optimizer):
        real(self, optimizer)
        for weight, _ in self._filled:
            weight.data = kept.setdefault(weight, weight.data)

    monkeypatch.setattr(StochasticRounding, "expand", expand)
    contradicted("the optimizer has float32 masters")


def test_half_of_the_weights_left_out_is_contradicted(monkeypatch):
    real = StochasticRounding.round

    def round_some(self):
        for weight, parameter in itertools.islice(self._filled, 1):
            with torch.no_grad():
                parameter.copy_(weight)
        self._filled = self._filled[1:]
        real(self)

    monkeypatch.setattr(StochasticRounding, "round", round_some)
    contradicted("float32 weights were stepped and not rounded stochastically")
