import math
import random

import pytest

from launcher.compare.intervals import ratio, t_quantile


# Source: the table of Student's t that statistics books print, 0.975.
@pytest.mark.parametrize(
    ("freedom", "value"), [(4, 2.7764), (5, 2.5706), (6, 2.4469), (7, 2.3646), (9, 2.2622), (30, 2.0423)]
)
def test_quantiles_are_those_of_the_printed_table(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, rel=4e-4)


def test_a_known_example_by_hand():
    """Logarithms of the ratios 1, 2, 1, 2, 1, 2 have the mean ln(2)/2 and the deviation 0.3797 over sqrt(6)."""
    seen = ratio([1, 2, 1, 2, 1, 2], [1, 1, 1, 1, 1, 1])
    margin = 2.5706 * 0.379655 / math.sqrt(6)
    assert seen.mean == pytest.approx(math.sqrt(2))
    assert seen.low == pytest.approx(math.sqrt(2) * math.exp(-margin), rel=2e-4)
    assert seen.high == pytest.approx(math.sqrt(2) * math.exp(margin), rel=2e-4)
    assert seen.differs is False


def test_fewer_than_five_pairs_have_a_ratio_and_no_interval():
    seen = ratio([2.0] * 4, [1.0] * 4)
    assert (seen.mean, seen.low, seen.high, seen.differs) == (pytest.approx(2.0), None, None, None)


def test_what_a_round_has_in_common_falls_out():
    busy = [1.0, 0.3, 0.9, 0.2, 0.7]
    seen = ratio([3.0 * factor for factor in busy], [2.0 * factor for factor in busy])
    assert (seen.low, seen.mean, seen.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_ratio_turned_round_has_the_interval_turned_round():
    ours, theirs = [1.1, 1.4, 1.2, 1.3, 1.6], [1.0, 1.1, 0.9, 1.05, 1.2]
    there, back = ratio(ours, theirs), ratio(theirs, ours)
    assert (back.low, back.mean, back.high) == pytest.approx((1 / there.high, 1 / there.mean, 1 / there.low))


@pytest.mark.parametrize("pairs", [5, 8])
def test_the_interval_covers_the_truth_as_often_as_it_says(pairs):
    """1,000 comparisons of noisy arms that are 1.1 apart: the coverage of 95% has a standard error of 0.69%."""
    dice = random.Random(pairs)
    covered = 0
    for _ in range(1000):
        common = [dice.gauss(0, 0.3) for _ in range(pairs)]
        ours = [math.exp(factor + math.log(1.1) + dice.gauss(0, 0.05)) for factor in common]
        theirs = [math.exp(factor + dice.gauss(0, 0.05)) for factor in common]
        seen = ratio(ours, theirs)
        covered += seen.low <= 1.1 <= seen.high
    assert 0.929 <= covered / 1000 <= 0.971
