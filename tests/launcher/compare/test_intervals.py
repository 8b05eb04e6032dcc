import math
import random

import pytest

from launcher.compare.intervals import Ratio, ratio, t_quantile


# Source: quantiles of Student's t, 0.975, as the tables of statistics programs have them.
@pytest.mark.parametrize(
    ("freedom", "value"),
    [(4, 2.776445105), (5, 2.570581836), (6, 2.446911851), (7, 2.364624252), (9, 2.262157163), (30, 2.042272456)],
)
def test_quantiles_differ_from_the_tables_by_what_a_series_of_five_terms_leaves_out(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, rel=0.4 / freedom**5)


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


@pytest.mark.parametrize(
    ("low", "high", "differs", "noisy", "text"),
    [
        (1.0, 1.2, False, True, "1.10"),
        (0.9, 1.0, False, True, "1.10"),
        (1.01, 1.2, True, False, "1.10"),
        (0.98, 1.01, False, False, "1.10"),
        (0.995, 1.01, False, False, "1.100"),
        (None, None, None, False, "1.10"),
    ],
)
def test_an_interval_that_holds_1_is_no_difference_and_a_wide_one_is_noise(low, high, differs, noisy, text):
    seen = Ratio(mean=1.1, pairs=5, low=low, high=high)
    assert (seen.differs, seen.is_noisy, seen.text(1.1)) == (differs, noisy, text)


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
