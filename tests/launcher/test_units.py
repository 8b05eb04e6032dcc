import pytest

from launcher import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-3, "0s"),
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3599.6, "1h00m"),
        (7620, "2h07m"),
        (86400 * 3 + 4 * 3600, "3d04h"),
    ],
)
def test_durations_read_aloud(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (512 * 2**20, "512 MiB"),
        (1023 * 2**20, "1.0 GiB"),
        (80 * 2**30, "80.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes_are_in_the_unit_that_fits(count, text):
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.0831234, "0.08312"),
        (2.5, "2.5"),
        (999.96, "1000"),
        (3410.5, "3410"),
        (65536.0, "65,536"),
        (1.5e-7, "1.5e-07"),
        (2.0e12, "2.000e+12"),
    ],
)
def test_numbers_have_four_digits_or_all_that_are_whole(value, text):
    assert units.number(value) == text


def test_times_are_read_with_and_without_a_z():
    assert units.seconds_of("2026-01-02T03:04:05Z") == 1767323045
    assert units.seconds_of("2026-01-02T03:04:05+00:00") == 1767323045
    assert units.seconds_of("2026-01-02T05:04:05.5+02:00") == 1767323045.5
    assert units.seconds_of(None) is None
    assert units.seconds_of("yesterday") is None


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (2.345, "2.35"), (1, "1.00"), (0.1, "0.10"), (0.0042, "0.0042")]
)
def test_a_small_ratio_is_not_shown_as_nothing(value, text):
    assert units.ratio(value) == text
