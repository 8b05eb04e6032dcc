import re

import pytest

from launcher.errors import UsageError
from launcher.runs import run_ids
from launcher.runs.run_ids import Match, Named, resolve

OTTER = "20260102-030405-brave-otter"
OWL = "20260102-030406-brave-owl"
LONGER = "20260102-030409-brave-otters"
SWEEP = "20260103-000000-calm-lake"
CELLS = [f"{SWEEP}-{index:03d}" for index in range(12)]


def test_an_id_has_its_time_in_utc_and_two_words_and_sorts_by_time():
    for words in (run_ids.FIRST_WORDS, run_ids.SECOND_WORDS):
        assert len(words) == len(set(words)) > 90
    ids = [run_ids.new_id(time) for time in (0, 1, 59, 3600, 86400 * 365, 1767323045.9)]
    assert ids == sorted(ids)
    assert re.fullmatch(r"20260102-030405-[a-z]+-[a-z]+", ids[-1])
    assert run_ids.is_id(ids[-1]) and run_ids.sweep_of(ids[-1]) is None


@pytest.mark.parametrize("count", [1, 12, 1000, 1001, 12345])
def test_cells_of_a_sweep_sort_in_their_order(count):
    ids = [run_ids.cell_id(SWEEP, index, count) for index in range(count)]
    assert ids == sorted(ids) and ids[0] == f"{SWEEP}-{'0' * max(3, len(str(count - 1)))}"
    assert all(run_ids.is_id(name) and run_ids.sweep_of(name) == SWEEP for name in ids[-3:])


@pytest.mark.parametrize("name", ["", ".unfinished", ".code", "notes", "20260102", f"{OTTER}/x", f"../{OTTER}"])
def test_other_names_in_a_run_root_are_no_runs(name):
    assert not run_ids.is_id(name)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        *((text, Match(OTTER, False, text == OTTER)) for text in (OTTER, OTTER[:-1], "20260102-030405")),
        ("brave-otter", Match(OTTER, False)),  # all words of one, and a beginning of another
        ("brave-ow", Match(OWL, False, False)),
        *((text, Match(SWEEP, True, text == SWEEP)) for text in (SWEEP, "calm", "20260103")),
        ("calm-lake-003", Match(CELLS[3], False)),
    ],
)
def test_a_beginning_of_an_id_or_of_its_words_is_enough(text, match):
    assert resolve(text, [OTTER, OWL, LONGER, *CELLS], [SWEEP]) == match


@pytest.mark.parametrize(
    ("runs", "match"),
    [
        ([OTTER], Match(OTTER, False, False)),
        (CELLS[3:4], Match(CELLS[3], False, False)),
        (CELLS[:-1], None),
        (CELLS, Match(SWEEP, True, False)),  # all cells are the sweep
        ([*CELLS, OTTER], None),
    ],
)
def test_runs_of_a_name_are_meant_by_it_and_the_callers_own_by_all_of_it(runs, match):
    for named in (Named(own=runs), Named(given=runs)):
        for text in ("wide", "1"):
            if match:
                exact = match._replace(is_exact=bool(named.own))
                assert resolve(text, [OTTER, OWL, *CELLS], [SWEEP], lambda named=named: named) == exact
                continue
            with pytest.raises(UsageError, match=f"{text} fits"):
                resolve(text, [OTTER, OWL, *CELLS], [SWEEP], lambda named=named: named)


def test_the_only_cell_of_a_sweep_that_has_a_name_is_that_cell():
    assert resolve("wide", CELLS[:1], [SWEEP], lambda: Named(own=CELLS[:1])) == Match(CELLS[0], False)


@pytest.mark.parametrize(
    ("text", "runs", "message"),
    [
        ("calm-lake-00", CELLS[:8], f"{CELLS[7]}\n"),
        (
            "000",
            [f"2026010{day}-000000-calm-lake-00{cell}" for day in (3, 4) for cell in (0, 1)],
            "mean 20260104-000000-calm-lake-000, 20260103-000000-calm-lake-000?",
        ),
        ("brave", [OWL, OTTER], f"brave fits 2 runs, be more specific: {OTTER}, {OWL}"),
        ("calm-lake-00", CELLS, "and 2 more"),
        *((text, [OTTER, SWEEP], f"did you mean {OTTER}") for text in ("brave-oter", "brve-otter", f"{OTTER[:-3]}r")),
        ("x" * 29, [OTTER, OWL], f"the newest is {OWL}"),
        ("brave", [], "there are no runs yet"),
        *((text, [OTTER], f"no run {text!r}") for text in ("", "-otter", "\x1b[31m")),
    ],
)
def test_a_text_that_names_no_run_or_several_is_refused_with_the_choices(text, runs, message):
    with pytest.raises(UsageError) as error:
        resolve(text, runs, [])
    assert message in f"{error.value}\n"
