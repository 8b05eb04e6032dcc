"""Loss scaling in graphs, step by step beside the rules of torch, Keras and Paddle."""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.precision.levels import PRESETS, LossScale
from recipes.tensorflow_.precision.loss_scale import LossScaler, NoScale, StaticLossScaler, make_scaler
from recipes.typed import SettingsError
from tests.recipes.loss_scale_rules import PaddleRule, TorchRule

OVERFLOWS = st.lists(st.booleans(), min_size=1, max_size=30)


class Moved:
    """A scaler in a graph that is told what each optimizer of an iteration found."""

    def __init__(self, chosen):
        self.scaler = make_scaler(chosen)
        self._iterate = tf.function(self._graph, autograph=False)

    def _graph(self, *bad):
        for each in bad:
            self.scaler.record(each)
        self.scaler.update()
        return self.scaler.current()

    def iterate(self, *bad):
        return float(self._iterate(*(tf.constant(each) for each in bad)))


MADE: dict[LossScale, Moved] = {}


def moved(chosen: LossScale) -> Moved:
    """One for these settings as it is at first: graphs are traced once for each."""
    if chosen not in MADE:
        MADE[chosen] = Moved(chosen)
        MADE[chosen].first = MADE[chosen].scaler.state_dict()
    MADE[chosen].scaler.load_state_dict(MADE[chosen].first)
    return MADE[chosen]


@given(
    overflows=OVERFLOWS,
    init=st.sampled_from([1.0, 2.0**15, 3.0]),
    growth=st.sampled_from([2.0, 1.5]),
    growth_every=st.sampled_from([1, 3]),
)
@settings(max_examples=40, deadline=None)
def test_it_moves_by_torchs_and_keras_rule(overflows, init, growth, growth_every):
    ours = moved(LossScale(mode="dynamic", init=init, growth=growth, growth_every=growth_every))
    rule = TorchRule(scale=init, growth=growth, backoff=0.5, growth_every=growth_every)
    assert [ours.iterate(bad) for bad in overflows] == pytest.approx([rule.iterate(bad) for bad in overflows])
    assert ours.scaler.skipped == overflows.count(True)


def test_it_moves_as_keras_own_scaler_at_every_step():
    ours = moved(LossScale(mode="dynamic", init=64.0, growth_every=3))
    weight = keras.Variable([0.0])
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=64.0, dynamic_growth_steps=3)
    theirs.build([weight])

    @tf.function(autograph=False)
    def apply(bad):
        theirs.apply([tf.where(bad, [float("inf")], [-1.0]) * theirs.dynamic_scale])

    for bad in (False, True, False, False, False, True, True, False, False, False, False):
        apply(tf.constant(bad))
        assert ours.iterate(bad) == float(theirs.dynamic_scale.numpy())
    assert weight.numpy()[0] == 8.0


@given(overflows=OVERFLOWS, growth_every=st.sampled_from([1, 4]), backoff_every=st.sampled_from([1, 2, 3]))
@settings(max_examples=40, deadline=None)
def test_backoff_every_moves_by_paddles_rule(overflows, growth_every, backoff_every):
    chosen = replace(PRESETS["paddle"], growth_every=growth_every, backoff_every=backoff_every)
    ours = moved(chosen)
    paddle = PaddleRule(
        scale=chosen.init, growth=2.0, backoff=0.5, growth_every=growth_every, backoff_every=backoff_every
    )
    assert [ours.iterate(bad) for bad in overflows] == [paddle.iterate(bad) for bad in overflows]


@given(overflows=OVERFLOWS)
@settings(max_examples=20, deadline=None)
def test_the_scale_stays_within_its_bounds(overflows):
    ours = moved(LossScale(mode="dynamic", init=8.0, growth_every=2, backoff_every=2, min=4.0, max=24.0))
    rule = PaddleRule(scale=8.0, growth=2.0, backoff=0.5, growth_every=2, backoff_every=2)
    for bad in overflows:
        rule.scale = min(max(rule.iterate(bad), 4.0), 24.0)
        assert ours.iterate(bad) == rule.scale


@pytest.mark.parametrize(("preset", "last"), [("tf", 1.0), ("keras", 0.125)])
def test_tensorflow_1s_scale_has_a_floor_and_kerass_has_none(preset, last):
    ours = moved(PRESETS[preset])
    assert [ours.iterate(True) for _ in range(18)][-1] == last


def test_a_scale_never_grows_to_infinity():
    ours = moved(LossScale(mode="dynamic", init=2.0**127, growth_every=1))
    assert [ours.iterate(False) for _ in range(2)] == [2.0**127, 2.0**127]


@given(overflows=OVERFLOWS)
@settings(max_examples=10, deadline=None)
def test_a_static_scale_never_moves_and_counts_bad_steps(overflows):
    ours = moved(LossScale(mode="static", init=128.0))
    assert {ours.iterate(bad) for bad in overflows} == {128.0}
    assert ours.scaler.skipped == overflows.count(True)


@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_with_two_optimizers_an_iteration_is_bad_if_either_step_was(pairs):
    ours = moved(LossScale(mode="dynamic", init=64.0, growth_every=2, backoff_every=2))
    rule = PaddleRule(scale=64.0, growth=2.0, backoff=0.5, growth_every=2, backoff_every=2)
    assert [ours.iterate(*pair) for pair in pairs] == [rule.iterate(any(pair)) for pair in pairs]
    assert ours.scaler.skipped == sum(bad for pair in pairs for bad in pair)


@given(overflows=OVERFLOWS, at=st.integers(0, 30))
@settings(max_examples=20, deadline=None)
def test_a_scaler_saved_anywhere_goes_on_as_if_it_had_not_been(overflows, at):
    chosen = LossScale(mode="dynamic", init=2.0**10, growth_every=3, backoff_every=2, min=1.0)
    whole = moved(chosen)
    expected = [whole.iterate(bad) for bad in overflows]
    end = whole.scaler.state_dict()
    first = moved(chosen)
    seen = [first.iterate(bad) for bad in overflows[:at]]
    saved = first.scaler.state_dict()
    moved(chosen).scaler.load_state_dict(saved)
    seen += [first.iterate(bad) for bad in overflows[at:]]
    assert seen == expected
    assert first.scaler.state_dict() == end


def test_the_mode_chooses_the_scaler():
    kinds = [type(make_scaler(LossScale(mode=mode))) for mode in ("none", "static", "dynamic")]
    assert kinds == [NoScale, StaticLossScaler, LossScaler]


@pytest.mark.parametrize(
    ("saved", "now", "key"),
    [
        (LossScale(mode="dynamic"), LossScale(mode="dynamic", growth_every=5), "growth_every"),
        (LossScale(mode="dynamic", init=128.0), LossScale(mode="static", init=128.0), "mode"),
        (LossScale(mode="none"), LossScale(mode="dynamic"), "mode"),
        (LossScale(mode="dynamic"), LossScale(mode="none"), "mode"),
    ],
)
def test_a_scale_saved_under_other_settings_is_refused(saved, now, key):
    state = make_scaler(saved).state_dict()
    with pytest.raises(SettingsError) as caught:
        make_scaler(now).load_state_dict(state)
    assert caught.value.key == f"loss_scale.{key}"


def test_each_optimizer_has_its_own_scale_which_its_own_overflows_alone_move():
    chosen = LossScale(mode="dynamic", init=8.0, growth_every=2, per_optimizer=True)
    scaler, optimizers = make_scaler(chosen), [keras.optimizers.SGD() for _ in range(2)]
    for each in optimizers:
        scaler.add(each)

    @tf.function(autograph=False)
    def iterate(*found):
        for optimizer, bad in zip(optimizers, found, strict=False):
            scaler.of(optimizer).record(bad)
        scaler.update()

    for found in ((True, False), (True, False), (False,)):
        iterate(*map(tf.constant, found))
    assert [scaler.of(each).value for each in optimizers] == [2.0, 16.0]
    assert (scaler.value, scaler.skipped) == (2.0, 2)
    again = make_scaler(chosen)
    for each in optimizers:
        again.add(each)
    again.load_state_dict(scaler.state_dict())
    assert [again.of(each).value for each in optimizers] == [2.0, 16.0]
    with pytest.raises(SettingsError, match=r"loss_scale\.per_optimizer="):
        make_scaler(replace(chosen, per_optimizer=False)).load_state_dict(scaler.state_dict())
