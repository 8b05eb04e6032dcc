"""Which steps are profiled, and what is left of them."""

from __future__ import annotations

import pytest

from recipes.settings import Profile
from recipes.trainer.profiling import Profiling, window
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


@pytest.mark.parametrize(
    ("start", "steps", "total", "taken", "expected"),
    [
        (10, 5, 100, {1, 50, 100}, range(10, 15)),
        (10, 5, 100, {1, 12, 100}, range(13, 18)),
        (10, 5, 15, {1, 13, 15}, range(8, 13)),
        (10, 5, 16, {1, 12, 16}, range(7, 12)),
        (10, 5, 16, {1, 8, 16}, range(10, 15)),
        (10, 5, 14, {1, 8, 14}, range(9, 14)),
        (10, 5, 11, {1, 6, 11}, range(7, 11)),
        (1, 3, 10, {1, 5, 10}, range(2, 5)),
        (98, 5, 100, {1, 50, 100}, range(95, 100)),
        (98, 5, 100, {1, 97, 100}, range(92, 97)),
    ],
)
def test_neither_warm_up_nor_observed_steps_are_among_them(start, steps, total, taken, expected):
    assert window(Profile(tool="framework", start=start, steps=steps), 1, total, taken) == expected


def test_a_resumed_run_profiles_what_is_left_of_it():
    assert window(Profile(tool="framework", start=10, steps=2), 50, 60, {50, 60}) == range(51, 53)


def test_a_run_that_is_too_short_is_refused():
    with pytest.raises(SettingsError, match=r"profile\.start=10: this run has 10 steps"):
        window(Profile(tool="framework"), 1, 10, {1, 10})


def test_what_is_left_names_the_steps_the_trace_and_the_share_of_tensor_cores(tmp_path):
    tape = Tape()
    profiling = Profiling(Profile(tool="framework", start=3, steps=2), tape, tmp_path)
    profiling.choose(1, 10, {1, 10})
    for number in range(1, 11):
        profiling.before(number)
        tape.seen.append(number)
        profiling.after(number)
    assert tape.seen == [1, 2, "start", 3, 4, "stop", 5, 6, 7, 8, 9, 10]
    found = profiling.found
    assert found.pop("seconds") >= 0
    assert found == {
        "tool": "framework",
        "steps": [3, 4],
        "instead_of": None,
        "trace": "profile/tape.json",
        "tensor_core_share": 0.75,
    }
    assert profiling.note == ""
    assert (tmp_path / "profile" / "tape.json").exists()


@pytest.mark.parametrize(
    ("first", "total", "taken", "said"),
    [
        (
            1,
            11,
            {1, 6, 11},
            "steps 7 to 10 instead of steps 10 to 14: this run has 11 steps, the last of which is obser",
        ),
        (1, 100, {1, 12, 100}, "steps 13 to 17 instead of steps 10 to 14: a step among those is observed"),
        (50, 60, {50, 60}, "steps 51 to 55 instead of steps 10 to 14: this attempt begins with step 50"),
    ],
)
def test_other_steps_than_those_asked_for_are_said_and_recorded(tmp_path, first, total, taken, said):
    profiling = Profiling(Profile(tool="framework", start=10, steps=5), Tape(), tmp_path)
    profiling.choose(first, total, taken)
    assert profiling.note.startswith(f"profiling {said}")
    for number in range(first, total + 1):
        profiling.before(number)
        profiling.after(number)
    assert profiling.found["instead_of"] == [10, 14]


def test_an_attempt_that_ends_before_the_steps_leaves_them_to_the_next(tmp_path):
    profiling = Profiling(Profile(tool="framework", start=10, steps=5), Tape(), tmp_path)
    profiling.choose(1, 8, {1}, goes_on=True)
    profiling.before(8)
    assert not profiling.running
    profiling.choose(9, 16, {9}, goes_on=True)
    assert profiling.note == ""
    profiling.choose(9, 13, {9}, goes_on=True)
    assert profiling.note == "profiling steps 10 to 13 instead of steps 10 to 14: this attempt ends with step 13"


def test_steps_that_are_broken_off_leave_what_was_recorded(tmp_path):
    tape = Tape()
    profiling = Profiling(Profile(tool="framework", start=3, steps=5), tape, tmp_path)
    profiling.choose(1, 20, {1, 20})
    profiling.before(3)
    profiling.after(3)
    profiling.end(3)
    profiling.end(3)
    assert (tape.seen, profiling.found["steps"]) == (["start", "stop"], [3, 3])


def test_steps_taken_several_at_a_time_are_profiled_whole(tmp_path):
    profiling = Profiling(Profile(tool="framework", start=5, steps=2), Tape(), tmp_path)
    profiling.choose(1, 12, {1, 12})
    for number in range(1, 13, 4):
        profiling.before(number, 4)
        profiling.after(number + 3)
    assert profiling.found["steps"] == [5, 8]


def test_nothing_asked_for_leaves_nothing(tmp_path):
    profiling = Profiling(Profile(), None, tmp_path)
    profiling.choose(1, 3, {1, 2, 3})
    profiling.before(1)
    profiling.after(1)
    assert profiling.found == {}


def test_a_trace_needs_a_run_folder():
    with pytest.raises(SettingsError, match="say run=FOLDER"):
        Profiling(Profile(tool="framework"), Tape(), None)
