import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.decode import decode
from launcher.runs.schema import MetricsRow
from launcher.ui import progress
from launcher.ui.progress import RECENT, Progress, rows_of


def record(row):
    return decode(MetricsRow, row)[0]


def advance(before, rows):
    return progress.advance(before, map(record, rows))


def start(**more):
    return {
        "event": "start",
        "attempt": 1,
        "total_steps": 100,
        "epochs": 4,
        "resumed_from": None,
        "time": 1000.0,
        **more,
    }


def step(number, **more):
    return {
        "step": number,
        "epoch": number // 25,
        "loss": 2.0 / number,
        "lr": 1.0,
        "seconds": 0.5,
        "samples_per_second": 256.0,
        "loss_scale": 65536.0,
        "skipped": False,
        "skipped_total": 1,
        "grad_norm": None,
        "memory_bytes": 1024,
        "time": 1010.0 + number,
        **more,
    }


def after(*rows):
    return advance(Progress(), [start(), *rows])


EVALUATED = {"event": "eval", "accuracy": 0.97}


def test_the_last_step_shows_where_the_run_is():
    progress = after(*(step(number) for number in range(1, 11)), EVALUATED)
    assert (progress.step, progress.total_steps, progress.epoch, progress.epochs) == (10, 100, 0, 4)
    assert (progress.loss, progress.loss_scale, progress.skipped) == (0.2, 65536.0, 1)
    assert (progress.memory_bytes, progress.accuracy) == (1024, 0.97)
    assert abs(progress.samples_per_second - 256) < 1e-9


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        # At the pace of the attempt, pauses included, its start not.
        ([start(time=0.0), step(1, time=60.0), step(2, time=61.0), EVALUATED, step(3, time=70.0)], 97 * 5.0),
        ([start(), step(99), step(100)], 0),
        ([start(), step(1)], None),
        ([start(total_steps=None), step(1), step(2)], None),
    ],
)
def test_the_time_left_is_known_from_the_second_step_on(rows, left):
    assert advance(Progress(), rows).seconds_left == left


def test_a_rate_that_changes_is_followed():
    slow = [step(number, samples_per_second=100.0, seconds=1.0) for number in range(1, 50)]
    fast = [step(number, samples_per_second=1000.0, seconds=0.1) for number in range(50, 100)]
    before = after(*slow)
    later = advance(before, fast)
    assert abs(before.samples_per_second - 100) < 1e-6
    assert 900 < later.samples_per_second < 1000


def test_a_loss_that_is_not_finite_is_shown_until_the_next_step():
    bad = after(step(1, loss=None, nonfinite=["loss"]))
    assert (bad.loss, bad.nonfinite) == (None, ("loss",))
    assert advance(bad, [step(2)]).nonfinite == ()


def test_a_resumed_attempt_goes_on_from_its_checkpoint_with_its_own_pace():
    first = after(*(step(number) for number in range(1, 11)), EVALUATED)
    second = advance(first, [start(attempt=2, resumed_from=10, total_steps=200)])
    assert (second.attempt, second.step, second.total_steps, second.skipped) == (2, 10, 200, 1)
    assert second.seconds_left is None and second.samples_per_second is None
    later = advance(second, [step(11, time=5000.0), step(12, time=5002.0)])
    assert later.seconds_left == 188 * 2.0
    anew = advance(first, [start(attempt=2)])
    assert (anew.step, anew.accuracy, anew.skipped) == (0, None, 0)


def test_rows_that_nobody_knows_do_no_harm():
    odd = [{"event": "stop"}, {"event": "end", "status": "done"}, {"event": "new"}, {}, {"step": 3}]
    assert after(*odd).step == 3


@given(st.lists(st.integers(0, 40), max_size=8))
def test_rows_taken_in_by_parts_amount_to_the_same(cuts):
    rows = [start(), *(step(number) for number in range(1, 30)), start(attempt=2, resumed_from=20), step(21), step(22)]
    at_once, parts, begin = advance(Progress(), rows), Progress(), 0
    for cut in [*sorted(cuts), len(rows)]:
        parts = advance(parts, rows[begin:cut])
        begin = max(begin, cut)
    assert parts == at_once


def test_of_a_long_backlog_the_events_and_the_last_steps_are_read():
    rows = [start(), *(step(number) for number in range(1, 5001)), {"event": "checkpoint", "step": 5000}, step(5001)]
    kept = rows_of([json.dumps(row).encode() for row in rows])
    assert len(kept) == RECENT + 2
    assert kept[0] == record(rows[0]) and kept[-2:] == [*map(record, rows[-2:])]
    assert kept[1].step == 5001 - RECENT + 1


def test_a_line_that_is_no_row_is_left_out():
    assert rows_of([b"", b"{", b"[1]", b'{"step": 1}', b"\xff"]) == [MetricsRow(step=1)]


def test_rows_of_a_script_show_steps_a_second_and_the_last_known_loss():
    script = {**step(1), "epoch": None, "loss": None, "samples_per_second": None, "steps_per_second": None}
    rows = [start(total_steps=None, epochs=None), {**script, "seconds": None}]
    rows += [{**script, "step": n, "seconds": 0.25, "steps_per_second": 4.0} for n in range(2, 30)]
    rows[10]["loss"] = 0.5
    progress = advance(Progress(), rows)
    assert (progress.samples_per_second, progress.seconds_left, progress.loss) == (None, None, 0.5)
    assert round(progress.steps_per_second, 6) == 4.0
