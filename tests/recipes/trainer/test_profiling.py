"""Which steps are profiled, and what is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.settings import Profile
from recipes.trainer.profiling import Profiling
from recipes.trainer.training import choose_steps
from recipes.typed import SettingsError


class Tape:
    """A profiler that writes down when it is started and stopped."""

    trace = "tape.json"

    def __init__(self):
        self.seen = []

    def start(self):
        self.seen.append("start")

    def stop(self, folder):
        self.seen.append("stop")
        (folder / self.trace).write_text("{}")
        return {"volta_s884gemm_fp16": 3.0, "volta_sgemm": 1.0}


def chosen(start: int, steps: int, first: int, last: int, **how: bool) -> range:
    profiling = Profiling(Profile(tool="framework", start=start, steps=steps), Tape(), Path())
    profiling.choose(first, last, **how)
    return profiling.steps


@pytest.mark.parametrize(
    ("start", "steps", "first", "last", "expected"),
    [
        (10, 5, 1, 100, range(10, 15)),
        (10, 5, 1, 12, range(10, 12)),
        (1, 3, 1, 10, range(2, 5)),
        (10, 2, 50, 60, range(51, 53)),
    ],
)
def test_neither_the_first_nor_the_last_step_of_an_attempt_is_among_them(start, steps, first, last, expected):
    assert chosen(start, steps, first, last) == expected


def test_the_step_that_is_drawn_to_be_observed_is_not_among_them():
    for seed in range(50):
        observed = choose_steps(20, seed, 1, range(5, 15))
        assert {1, 20} <= observed and not observed & {*range(5, 15)}
    assert choose_steps(20, 0, 1, range(2, 20)) == {1, 20}


def test_a_run_that_is_too_short_is_refused():
    with pytest.raises(SettingsError, match=r"profile\.start=10: this run has 10 steps"):
        chosen(10, 5, 1, 10)


def test_what_is_left_names_the_steps_the_trace_and_the_share_of_tensor_cores(tmp_path):
    tape = Tape()
    profiling = Profiling(Profile(tool="framework", start=3, steps=2), tape, tmp_path)
    profiling.choose(1, 10)
    for number in range(1, 11):
        profiling.before(number)
        tape.seen.append(number)
        profiling.after(number)
    assert tape.seen == [1, 2, "start", 3, 4, "stop", 5, 6, 7, 8, 9, 10]
    record = profiling.record
    assert record.pop("seconds") >= 0
    assert record == {
        "tool": "framework",
        "steps": [3, 4],
        "instead_of": None,
        "trace": "profile/tape.json",
        "tensor_core_share": 0.75,
    }
    assert profiling.note == ""
    assert (tmp_path / "profile" / "tape.json").exists()


@pytest.mark.parametrize(
    ("first", "last", "note"),
    [
        (1, 12, "steps 10 to 11 instead of steps 10 to 14: this run has 12 steps, the last of which is observed"),
        (50, 60, "steps 51 to 55 instead of steps 10 to 14: this attempt begins with step 50"),
    ],
)
def test_other_steps_than_those_asked_for_are_reported_and_recorded(tmp_path, first, last, note):
    profiling = Profiling(Profile(tool="framework", start=10, steps=5), Tape(), tmp_path)
    profiling.choose(first, last)
    assert profiling.note == f"profiling {note}"
    for number in range(first, last + 1):
        profiling.before(number)
        profiling.after(number)
    assert profiling.record["instead_of"] == [10, 14]


def test_an_attempt_that_ends_before_the_steps_leaves_them_to_the_next(tmp_path):
    profiling = Profiling(Profile(tool="framework", start=10, steps=5), Tape(), tmp_path)
    profiling.choose(1, 8, goes_on=True)
    profiling.before(8)
    assert not profiling.running
    profiling.choose(9, 16, goes_on=True)
    assert profiling.note == ""
    profiling.choose(9, 13, goes_on=True)
    assert profiling.note == "profiling steps 10 to 13 instead of steps 10 to 14: this attempt ends with step 13"


def test_steps_that_are_broken_off_leave_what_was_recorded(tmp_path):
    tape = Tape()
    profiling = Profiling(Profile(tool="framework", start=3, steps=5), tape, tmp_path)
    profiling.choose(1, 20)
    profiling.before(3)
    profiling.after(3)
    profiling.end(3)
    profiling.end(3)
    assert (tape.seen, profiling.record["steps"]) == (["start", "stop"], [3, 3])


def test_steps_taken_several_at_a_time_are_profiled_whole(tmp_path):
    profiling = Profiling(Profile(tool="framework", start=5, steps=2), Tape(), tmp_path)
    profiling.choose(1, 12)
    for number in range(1, 13, 4):
        profiling.before(number, 4)
        profiling.after(number + 3)
    assert profiling.record["steps"] == [5, 8]


def test_nothing_asked_for_leaves_nothing(tmp_path):
    profiling = Profiling(Profile(), None, tmp_path)
    profiling.choose(1, 3)
    profiling.before(1)
    profiling.after(1)
    assert profiling.record == {}


def test_a_trace_needs_a_run_folder():
    with pytest.raises(SettingsError, match="say run=FOLDER"):
        Profiling(Profile(tool="framework"), Tape(), None)
