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

from recipes.data import tokens
from recipes.precision.levels import Amp, LossScale
from recipes.torch_ import gpt as trainer
from recipes.torch_ import loop
from recipes.torch_.observe.observer import PrecisionObserver
from recipes.torch_.precision import Precision, stochastic_rounding
from recipes.torch_.precision.stochastic_rounding import round_up_or_down
from recipes.typed import SettingsError
from tests.recipes.torch_.observed_runs import Dense, Training
from tests.recipes.torch_.trainers import differences, last_state, result, steps

STOCHASTIC = Amp(level="o3", dtype="bfloat16", rounding="stochastic")
O3 = Amp(level="o3", dtype="bfloat16")
EVERY_NOISE = torch.arange(2**16, dtype=torch.int32)
SMALL = (
    *("train.layers=2", "train.width=32", "train.heads=2", "train.context=16", "train.held_out=4"),
    *("batch=4", "checkpoint.every=0", "amp=o3", "amp.rounding=stochastic"),
)


def of(amp: Amp = STOCHASTIC) -> Precision:
    return Precision.of(amp, LossScale(), torch.device("cpu"))


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
    away = from_bits((bits & 0xFFFF0000) + 0x10000)
    up = rounded.float() == away
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
    noise = torch.empty_like(values, dtype=torch.int32).random_(0, 2**16)
    rounded = round_up_or_down(values, noise)
    assert rounded.is_contiguous(memory_format=torch.channels_last)
    assert ((rounded.float() - values).abs() <= values.abs() * 2**-7).all()


# Training


def small_steps(amp: Amp, seed: int = 0) -> float:
    """How far 40 steps of SGD at a rate of 1e-4 lower the loss, measured in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs, labels = torch.randn(64, 16), torch.randint(0, 10, (64,))
    precision = of(amp)
    precision.cast(model)
    torch.manual_seed(seed)
    optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=1e-4))

    def exact_loss() -> float:
        judge = copy.deepcopy(model).float()
        with torch.no_grad():
            return cross_entropy(judge(inputs), labels).item()

    before = exact_loss()
    for _ in range(40):
        optimizer.zero_grad()
        with precision.forward():
            loss = cross_entropy(precision.output(model(precision.input(inputs))), labels)
        precision.backward(loss)
        precision.step(optimizer)
        precision.update()
    return before - exact_loss()


def test_small_updates_survive_without_masters():
    float32 = small_steps(Amp(level="o0"))
    drops = [small_steps(STOCHASTIC, seed) for seed in range(8)]
    assert small_steps(O3) < 0.2 * float32
    assert sum(drops) / len(drops) == pytest.approx(float32, rel=0.05)
    assert all(drop == pytest.approx(float32, rel=0.25) for drop in drops)
    assert len(set(drops)) == len(drops) and small_steps(STOCHASTIC, 3) == drops[3]  # by seed


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.AdamW, torch.optim.RMSprop]
)
def test_any_optimizer_keeps_its_state_in_float32_and_no_float32_weights(make):
    training = Training(Dense, STOCHASTIC, make_optimizer=make)
    for _ in range(3):
        training.step()
    assert {each.dtype for each in training.net.parameters()} == {torch.bfloat16}
    state = training.optimizer.state_dict()["state"].values()
    assert {value.dtype for each in state for value in each.values() if torch.is_tensor(value)} <= {torch.float32}
    copies = [each for group in training.optimizer.param_groups for each in group["params"]]
    assert [each.shape for each in copies] == [each.shape for each in training.net.parameters()]
    assert all(each.untyped_storage().nbytes() == 4 and each.grad is None for each in copies)


def test_the_optimizer_clears_the_models_gradients_and_steps_parameters_that_come_later():
    training = Training(Dense, STOCHASTIC)
    late = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    training.optimizer.add_param_group({"params": [late], "lr": 1e-4})
    late.grad = torch.ones_like(late)
    training.step()
    assert 0.999 < late.float().mean() < 1 and late.grad is None
    training.precision.backward(training.net(training.net.images().bfloat16()).float().sum())
    training.optimizer.zero_grad(set_to_none=False)
    assert all(not each.grad.any() for each in training.net.parameters())


def test_a_kept_module_stays_in_float32_and_clipping_sees_all_gradients():
    amp = Amp(level="o3", dtype="bfloat16", rounding="stochastic", keep_fp32=("second",))
    precision, plain = of(amp), of(Amp(level="o0"))
    norms = []
    for each in (precision, plain):
        torch.manual_seed(0)
        model = each.cast(Dense())
        optimizer = each.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.01))
        with each.forward():
            loss = each.output(model(each.input(torch.ones(4, 32)))).square().mean()
        each.backward(loss)
        norms.append(each.step(optimizer, clip=1e-3).grad_norm.item())
        each.update()
    assert norms[0] == pytest.approx(norms[1], rel=0.02)


def test_a_step_that_fails_leaves_the_weights_and_no_copies():
    training = Training(Dense, STOCHASTIC)
    before = [each.detach().clone() for each in training.net.parameters()]
    real, training.optimizer.step = training.optimizer.step, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        training.step()
    assert all(torch.equal(*pair) for pair in zip(before, training.net.parameters(), strict=True))
    copies = [each for group in training.optimizer.param_groups for each in group["params"]]
    assert all(each.untyped_storage().nbytes() == 4 for each in copies)
    training.optimizer.step = real
    training.step()


def test_an_optimizer_that_was_not_prepared_and_one_prepared_twice_are_refused():
    training = Training(Dense, STOCHASTIC)
    with pytest.raises(RuntimeError, match="twice for the same optimizer"):
        training.precision.optimizer(training.net, training.optimizer)
    with pytest.raises(RuntimeError, match=r"comes after optimizer = precision\.optimizer"):
        training.precision.step(torch.optim.SGD(training.net.parameters(), lr=0.1))


def test_a_checkpoint_that_was_rounded_otherwise_is_refused():
    nearest, stochastic = Training(Dense, O3), Training(Dense, STOCHASTIC)
    with pytest.raises(SettingsError, match=r"amp.rounding=stochastic, .* saved with amp.rounding=nearest"):
        stochastic.precision.load_state_dict(nearest.precision.state_dict())


# In a recipe


def train(folder: Path, *words: str, ends: int = loop.DONE) -> Path:
    by_key = {word.partition("=")[0]: word for word in (*SMALL, *words)}
    assert loop.main("gpt", trainer.train, [*by_key.values(), f"run={folder}"]) == ends
    return folder


def test_a_recipe_is_proved_resumes_bit_by_bit_and_depends_on_its_seed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tokens, "LIBRARY", Path(asyncio.__file__).parent)
    train(tmp_path / "whole", "steps=4", "accumulate=2")
    for ends in (85, 0):
        train(tmp_path / "parts", "steps=4", "accumulate=2", "checkpoint.stop_every=2", ends=ends)
    whole, parts = last_state(tmp_path / "whole"), last_state(tmp_path / "parts")
    for key in ("model", "optimizers", "precision"):
        assert differences(whole[key], parts[key], key) == []
    assert whole["precision"]["rounding"]["steps"] == 4
    assert {each.dtype for each in whole["model"].values()} == {torch.bfloat16}
    found = result(tmp_path / "whole")
    assert (found["mechanism"], found["observed"]["verdict"]) == ("half_model_stochastic", "proved")
    assert "; weights rounded stochastically: " in found["observed"]["why"]
    capsys.readouterr()
    train(tmp_path / "whole", "steps=5", "accumulate=2", "amp.rounding=nearest", ends=2)
    assert "amp.rounding=nearest, and" in capsys.readouterr().err
    other = steps(train(tmp_path / "other", "steps=4", "accumulate=2", "seed=1"))
    assert other != steps(tmp_path / "whole")


# The observer


def of_many(**options) -> Training:
    return Training(Wide, STOCHASTIC, make_optimizer=torch.optim.Adam, **options)


class Wide(Dense):
    """Enough weights to tell how they were rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 128), nn.Linear(128, 10)


def test_rounding_is_proved_by_the_weights():
    found = of_many().run()
    assert found["verdict"] == "proved", found["why"]
    assert found["param_dtypes"] == {"bfloat16": 32 * 128 + 128 + 128 * 10 + 10}


@pytest.mark.slow
def test_rounding_under_compiled_code_is_proved_too():
    found = of_many(compile=True).run()
    assert (found["verdict"], found["half_flop_share"]) == ("proved", 1), found["why"]


def nearest(values, noise):
    return values.bfloat16()


def toward_zero(values, noise):
    return round_up_or_down(values, torch.zeros_like(noise))


def half_the_noise(values, noise):
    return round_up_or_down(values, noise // 2)


def somewhere_else(values, noise):
    return (values * 1.1).bfloat16()


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        (nearest, "0 were rounded to the farther of the two, and stochastic rounding gives about"),
        (toward_zero, "0 were rounded away from zero, and stochastic rounding gives about"),
        (half_the_noise, "were rounded away from zero, and stochastic rounding gives about"),
        (somewhere_else, "weights became neither of the two bfloat16 values"),
    ],
)
def test_another_rounding_than_the_one_asked_for_is_contradicted(monkeypatch, rounds, why):
    monkeypatch.setattr(stochastic_rounding, "round_up_or_down", rounds)
    found = of_many().run()
    assert found["verdict"] == "contradicted" and why in found["why"], found["why"]


def judged_as_stochastic(amp: Amp) -> dict:
    """What a run at `amp` shows an observer that was told of stochastic rounding."""
    training = Training(Wide, amp, make_optimizer=torch.optim.Adam)
    training.observer = PrecisionObserver(training.net, of().resolved)
    return training.run()


def test_plain_o3_and_o2_where_rounding_was_asked_for_are_contradicted():
    found = judged_as_stochastic(O3)
    assert found["verdict"] == "contradicted"
    assert "stepped bfloat16 weights, but amp.rounding=stochastic steps float32 ones" in found["why"]
    found = judged_as_stochastic(Amp(level="o2", dtype="bfloat16"))
    assert found["verdict"] == "contradicted"
    assert "float32 weights were stepped and not rounded stochastically" in found["why"]


def test_masters_behind_the_rounding_are_contradicted(monkeypatch):
    kept: dict[torch.Tensor, torch.Tensor] = {}
    real_expand, real_release = (
        getattr(stochastic_rounding.StochasticRounding, each) for each in ("expand", "release")
    )

    def expand(self, optimizer):
        real_expand(self, optimizer)
        for each, _ in self._filled:
            each.data = kept.setdefault(each, each.data)

    monkeypatch.setattr(stochastic_rounding.StochasticRounding, "expand", expand)
    monkeypatch.setattr(stochastic_rounding.StochasticRounding, "release", real_release)
    found = of_many().run()
    assert found["verdict"] == "contradicted" and "the optimizer has float32 masters" in found["why"]


def test_half_of_the_weights_left_out_is_contradicted(monkeypatch):
    real = stochastic_rounding.StochasticRounding.round

    def round_some(self):
        for each, parameter in itertools.islice(self._filled, 1):
            with torch.no_grad():
                parameter.copy_(each)
        self._filled = self._filled[1:]
        real(self)

    monkeypatch.setattr(stochastic_rounding.StochasticRounding, "round", round_some)
    assert "float32 weights were stepped and not rounded stochastically" in of_many().run()["why"]


def test_too_few_weights_to_tell_are_unknown():
    found = Training(Dense, STOCHASTIC, make_optimizer=lambda each: torch.optim.SGD(each, lr=1e-7)).run()
    assert found["verdict"] == "unknown" and "too few weights were between two bfloat16 values" in found["why"]
