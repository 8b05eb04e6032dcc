import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.runs import run_ids
from launcher.runs.run_ids import Match, resolve

OTTER = "20260102-030405-brave-otter"
OWL = "20260102-030406-brave-owl"
SWEEP = "20260103-000000-calm-lake"
CELLS = [f"{SWEEP}-{index:03d}" for index in range(12)]


def test_an_id_says_its_time_in_utc_and_two_words():
    assert re.fullmatch(r"20260102-030405-[a-z]+-[a-z]+", run_ids.new_id(1767323045.9))


def test_the_words_are_lower_case_letters_and_none_is_twice_in_its_list():
    for words in (run_ids.FIRST_WORDS, run_ids.SECOND_WORDS):
        assert len(words) == len(set(words)) > 90
        assert all(re.fullmatch("[a-z]+", word) for word in words)


def test_ids_of_later_runs_sort_after_earlier_ones():
    times = [0, 1, 59, 3600, 86400 * 365, 1767323045]
    made = [run_ids.new_id(time) for time in times]
    assert made == sorted(made)


def test_cells_of_a_sweep_sort_in_their_order_however_many_there_are():
    for cells in (1, 12, 1000, 1001, 12345):
        ids = [run_ids.cell_id(SWEEP, index, cells) for index in range(cells)]
        assert ids == sorted(ids)
        assert ids[0].startswith(f"{SWEEP}-000")
        assert all(run_ids.is_id(identifier) and run_ids.sweep_of(identifier) == SWEEP for identifier in ids[-3:])


def test_a_run_of_its_own_belongs_to_no_sweep():
    assert run_ids.sweep_of(OTTER) is None


@pytest.mark.parametrize(
    "name", ["", ".unfinished", ".code", "notes", "20260102", f"{OTTER}/x", f"../{OTTER}", "a" * 30]
)
def test_other_names_in_a_run_root_are_no_runs(name):
    assert not run_ids.is_id(name)


@pytest.mark.parametrize("text", [OTTER, OTTER[:-1], "20260102-030405", "brave-otter", "brave-ot"])
def test_a_beginning_of_the_name_or_of_its_words_is_enough(text):
    assert resolve(text, [OTTER, OWL], []) == Match(OTTER, False)


def test_a_complete_name_takes_precedence_over_longer_ones_that_begin_with_it():
    longer = "20260102-030409-brave-otters"
    assert resolve("brave-otter", [OTTER, longer], []) == Match(OTTER, False)


@pytest.mark.parametrize("text", [SWEEP, "calm", "20260103"])
def test_a_prefix_of_a_sweep_and_its_cells_means_the_sweep(text):
    assert resolve(text, CELLS, [SWEEP]) == Match(SWEEP, True)


def test_a_cell_is_named_by_its_number_behind_the_words():
    assert resolve("calm-lake-003", CELLS, [SWEEP]) == Match(CELLS[3], False)


def test_a_beginning_that_fits_several_lists_them():
    with pytest.raises(UsageError, match="fits 2 runs") as error:
        resolve("brave", [OWL, OTTER], [])
    assert OTTER in str(error.value) and OWL in str(error.value)


def test_a_long_list_of_fitting_names_is_cut_and_counted():
    with pytest.raises(UsageError, match="and 2 more"):
        resolve("calm-lake-00", CELLS, [])


@pytest.mark.parametrize("typed", ["brave-oter", "20260102-030405-brave-oter", "brve-otter"])
def test_an_unknown_name_gets_the_nearest(typed):
    with pytest.raises(UsageError, match=OTTER):
        resolve(typed, [OTTER, "20200101-000000-calm-lake"], [])


def test_a_name_that_is_like_none_gets_the_newest():
    with pytest.raises(UsageError, match=f"the newest is {OWL}"):
        resolve("xxxxxxxxxxxxxxxxxxxxxxxxxxxxx", [OTTER, OWL], [])


def test_without_any_run_the_error_says_so():
    with pytest.raises(UsageError, match="there are no runs yet"):
        resolve("brave", [], [])


@pytest.mark.parametrize("text", ["", "-otter", "\x1b[31m"])
def test_an_empty_text_and_the_middle_of_a_name_match_no_run(text):
    with pytest.raises(UsageError) as error:
        resolve(text, [OTTER], [])
    assert "\x1b" not in str(error.value)


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=20), st.data())
def test_every_run_is_found_by_its_own_name_among_any_others(times, data):
    ids = sorted({run_ids.new_id(time) for time in times})
    chosen = data.draw(st.sampled_from(ids))
    assert resolve(chosen, ids, []) == Match(chosen, False)
