"""Which samples a step trains on."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from amp_launcher.loop import sampling


@given(st.integers(-(2**63), 2**64), st.integers(0, 10**6), st.integers(0, 300))
def test_every_epoch_visits_every_sample_once(seed, epoch, count):
    assert sorted(sampling.order(seed, epoch, count).tolist()) == list(range(count))


def test_seed_and_epoch_alone_decide_the_order():
    first = sampling.order(1, 2, 1000)
    assert numpy.array_equal(first, sampling.order(1, 2, 1000))
    assert not numpy.array_equal(first, sampling.order(1, 3, 1000))
    assert not numpy.array_equal(first, sampling.order(2, 2, 1000))


def test_the_order_is_the_same_in_every_version():
    assert sampling.order(0, 0, 8).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 40))
def test_the_ranks_share_each_batch_without_rest_or_overlap(ranks, accumulate, size, extra):
    batch = ranks * accumulate * size
    order = sampling.order(0, 0, 3 * batch + extra % batch)
    shares = [sampling.share(order, batch, accumulate, rank, ranks) for rank in range(ranks)]
    for step in range(3):
        samples = numpy.concatenate([share[step].ravel() for share in shares])
        assert sorted(samples.tolist()) == sorted(order[step * batch : (step + 1) * batch].tolist())
    assert {share.shape for share in shares} == {(3, accumulate, size)}


def test_a_micro_batch_holds_the_same_samples_for_any_number_of_ranks():
    order = sampling.order(0, 0, 48)
    alone = sampling.share(order, 24, 2, 0, 1)
    together = [sampling.share(order, 24, 2, rank, 3) for rank in range(3)]
    assert numpy.array_equal(alone, numpy.concatenate(together, axis=2))


def test_what_augmentation_draws_depends_on_seed_epoch_and_index_alone():
    drawn = sampling.uniforms(1, 2, 3, 4)
    assert numpy.array_equal(drawn, sampling.uniforms(1, 2, 3, 4))
    assert all(0 <= number < 1 for number in sampling.uniforms(1, 2, 3, 1000))
    for others in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not set(drawn.tolist()) & set(sampling.uniforms(*others, 4).tolist())


def test_what_is_held_out_is_never_trained_on_and_depends_on_the_seed_alone():
    trained_on, held_out = sampling.split(5, 50, 10)
    assert sorted([*trained_on, *held_out]) == list(range(50))
    assert len(held_out) == 10
    assert numpy.array_equal(held_out, sampling.split(5, 50, 10)[1])
    assert not numpy.array_equal(held_out, sampling.split(6, 50, 10)[1])
