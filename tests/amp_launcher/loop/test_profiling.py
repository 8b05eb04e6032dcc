"""Which steps are profiled, and the record of them."""

from __future__ import annotations

import pytest

from amp_launcher.loop.profiling import Profiling
from amp_launcher.loop.proof import choose_steps
from amp_launcher.settings import Profile
from amp_launcher.typed import SettingsError


class Tape:
    """A profiler that notes when it is started and stopped."""

    trace = "tape.json"

    def __init__(self):
        self.events = []

    def start(self):
        self.events.append("start")

    def stop(self, folder):
        self.events.append("stop")
        (folder / self.trace).write_text("{}")
        return {"volta_s884gemm_fp16": 3.0, "volta_sgemm": 1.0}


@pytest.fixture
def profiling(tmp_path):
    """The profiling of `steps` from `start` on, with its tape."""

    def make(start=10, steps=5):
        tape = Tape()
        return Profiling(Profile(tool="framework", start=start, steps=steps), tape, tmp_path), tape

    return make


def take(profiling, steps, tape=None, at_once=1):
    for number in range(steps[0], steps[-1] + 1, at_once):
        profiling.before(number, at_once)
        if tape is not None:
            tape.events.append(number)
        profiling.after(number + at_once - 1)


INSTEAD = "instead of steps 10 to 14"


@pytest.mark.parametrize(
    ("asked", "attempt", "goes_on", "expected", "note"),
    [
        ((10, 5), (1, 100), False, range(10, 15), ""),
        ((10, 5), (1, 12), False, range(10, 12), f"steps 10 to 11 {INSTEAD}: this run has 12 steps, the last of which"),
        ((10, 5), (1, 11), False, range(10, 11), f"step 10 {INSTEAD}: this run has 11 steps, the last of which is"),
        ((10, 5), (50, 60), False, range(51, 56), f"steps 51 to 55 {INSTEAD}: this attempt begins with step 50"),
        ((1, 3), (1, 10), False, range(2, 5), "steps 2 to 4 instead of steps 1 to 3: this attempt begins with step 1"),
        ((10, 5), (1, 8), True, range(0), ""),
        ((10, 5), (9, 16), True, range(10, 15), ""),
        ((10, 5), (99, 100), False, range(0), "no step: this attempt takes steps 99 to 100, and observes both"),
        ((10, 5), (101, 100), False, range(0), "no step: this attempt takes no step that is not obs"),
        ((10, 5), (9, 13), True, range(10, 14), f"steps 10 to 13 {INSTEAD}: this attempt ends with step 13"),
    ],
)
def test_neither_the_first_nor_the_last_step_of_a_run_is_profiled_and_other_steps_than_asked_are_reported(
    profiling, asked, attempt, goes_on, expected, note
):
    chosen, tape = profiling(*asked)
    chosen.choose(*attempt, goes_on=goes_on)
    assert chosen.steps == expected
    assert chosen.note.startswith(f"profiling {note}" if note else "") and bool(chosen.note) == bool(note)
    take(chosen, attempt)
    assert tape.events == (["start", "stop"] if expected else [])
    if expected:
        assert chosen.record["steps"] == [expected[0], expected[-1]]
        assert chosen.record["instead_of"] == ([asked[0], sum(asked) - 1] if note else None)


@pytest.mark.parametrize(
    ("attempt", "stop_every", "expected"),
    [
        ((1, 100), 0, range(10, 15)),
        ((1, 100), 12, range(10, 13)),
        ((1, 100), 8, range(0)),
        ((9, 100), 8, range(10, 15)),
        ((1, 12), 12, range(10, 12)),
    ],
)
def test_an_attempt_that_stops_as_planned_profiles_up_to_there(profiling, attempt, stop_every, expected):
    chosen, _ = profiling()
    chosen.choose_within(*attempt, stop_every)
    assert chosen.steps == expected


@pytest.mark.parametrize(("seen", "note"), [(10, ""), (12, "profiling steps 12 to 16 instead of steps 10 to 14: it")])
def test_where_only_some_steps_are_seen_as_many_are_recorded_from_the_first_one_due(profiling, seen, note):
    chosen, tape = profiling()
    chosen.whenever()
    assert chosen.steps == range(10, 15)
    for number in (4, 9, seen, seen + 1):
        chosen.between(number)
    assert (chosen.steps, tape.events) == (range(seen, seen + 5), ["start"])
    assert chosen.note.startswith(note) and bool(chosen.note) is bool(note)
    for number in (seen + 3, seen + 4, 40):
        chosen.after(number)
        chosen.between(number)
    assert (tape.events, chosen.record["steps"]) == (["start", "stop"], [seen, seen + 4])


def test_a_script_that_ends_where_its_record_was_about_to_begin_has_none(profiling, tmp_path):
    chosen, tape = profiling(3)
    chosen.choose(1, 20)
    chosen.before(3)
    chosen.end(2)
    assert (tape.events, chosen.record, list(tmp_path.iterdir())) == (["start", "stop"], {}, [])


def test_the_step_that_is_drawn_to_be_observed_is_not_profiled():
    for seed in range(50):
        observed = choose_steps(20, seed, 1, range(5, 15))
        assert {1, 20} <= observed and not observed & {*range(5, 15)}
    assert choose_steps(20, 0, 1, range(2, 20)) == {1, 20}


def test_a_run_that_is_too_short_is_refused(profiling):
    with pytest.raises(SettingsError, match=r"profile\.start=10: this run has 10 steps"):
        profiling()[0].choose(1, 10)


def test_the_record_names_the_steps_the_trace_and_the_share_of_tensor_cores(profiling, tmp_path):
    chosen, tape = profiling(3, 2)
    chosen.choose(1, 10)
    take(chosen, (1, 10), tape)
    assert tape.events == [1, 2, "start", 3, 4, "stop", 5, 6, 7, 8, 9, 10]
    expected = {"tool": "framework", "steps": [3, 4], "instead_of": None}
    assert chosen.record == {**expected, "trace": "profile/tape.json", "tensor_core_share": 0.75}
    assert (tmp_path / "profile" / "tape.json").exists()


def test_steps_that_are_broken_off_leave_what_was_recorded(profiling):
    chosen, tape = profiling(3)
    chosen.choose(1, 20)
    take(chosen, (3, 3))
    chosen.end(3)
    chosen.end(3)
    assert (tape.events, chosen.record["steps"]) == (["start", "stop"], [3, 3])


def test_all_steps_of_an_execution_are_profiled(profiling):
    chosen, _ = profiling(5, 2)
    chosen.choose(1, 12)
    take(chosen, (1, 12), at_once=4)
    assert chosen.record["steps"] == [5, 8]


def test_without_a_profiler_nothing_is_recorded(tmp_path):
    profiling = Profiling(Profile(), None, tmp_path)
    profiling.choose(1, 3)
    take(profiling, (1, 3))
    assert profiling.record == {}


def test_a_trace_needs_a_run_folder():
    with pytest.raises(SettingsError, match="say run=FOLDER"):
        Profiling(Profile(tool="framework"), Tape(), None)
