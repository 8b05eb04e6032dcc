import json

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


def lines(rows):
    return [json.dumps(row).encode() for row in rows]


def test_without_rows_nothing_is_known():
    assert advance(Progress(), []) == Progress()


def test_the_last_step_says_where_the_run_is():
    found = advance(Progress(), [start(), *(step(number) for number in range(1, 11))])
    assert (found.step, found.total_steps, found.epoch, found.epochs) == (10, 100, 0, 4)
    assert (found.loss, found.loss_scale, found.skipped) == (0.2, 65536.0, 1)
    assert found.memory_bytes == 1024
    assert abs(found.samples_per_second - 256) < 1e-9


def test_the_time_left_is_at_the_pace_of_the_attempt_with_its_pauses_and_without_its_start():
    rows = [
        start(time=0.0),
        step(1, time=60.0),
        step(2, time=61.0),
        {"event": "eval", "accuracy": 0.9},
        step(3, time=70.0),
    ]
    assert advance(Progress(), rows).seconds_left == 97 * 5.0


def test_before_two_steps_the_time_left_is_not_known():
    assert advance(Progress(), [start(), step(1)]).seconds_left is None
    assert advance(Progress(), [start(total_steps=None), step(1), step(2)]).seconds_left is None


def test_at_the_last_step_nothing_is_left():
    assert advance(Progress(), [start(), step(99), step(100)]).seconds_left == 0


def test_a_rate_that_changes_is_followed():
    slow = [step(number, samples_per_second=100.0, seconds=1.0) for number in range(1, 50)]
    fast = [step(number, samples_per_second=1000.0, seconds=0.1) for number in range(50, 100)]
    before = advance(Progress(), [start(), *slow])
    after = advance(before, fast)
    assert abs(before.samples_per_second - 100) < 1e-6
    assert 900 < after.samples_per_second < 1000


def test_a_loss_that_is_not_finite_is_said_and_forgotten_at_the_next_step():
    bad = advance(Progress(), [start(), step(1, loss=None, nonfinite=["loss"])])
    assert (bad.loss, bad.nonfinite) == (None, ("loss",))
    assert advance(bad, [step(2)]).nonfinite == ()


def test_an_evaluation_gives_the_accuracy():
    assert advance(Progress(), [start(), step(1), {"event": "eval", "accuracy": 0.97}]).accuracy == 0.97


def test_a_resumed_attempt_goes_on_from_its_checkpoint_with_its_own_pace():
    first = advance(Progress(), [start(), *(step(number) for number in range(1, 11))])
    second = advance(first, [start(attempt=2, resumed_from=10, total_steps=200)])
    assert (second.attempt, second.step, second.total_steps) == (2, 10, 200)
    assert second.seconds_left is None and second.samples_per_second is None
    assert second.skipped == 1
    later = advance(second, [step(11, time=5000.0), step(12, time=5002.0)])
    assert later.seconds_left == 188 * 2.0


def test_an_attempt_from_the_beginning_forgets_the_one_before():
    first = advance(Progress(), [start(), step(1), {"event": "eval", "accuracy": 0.97}])
    second = advance(first, [start(attempt=2)])
    assert (second.step, second.accuracy, second.skipped) == (0, None, 0)


def test_rows_that_nobody_knows_do_no_harm():
    odd = [{"event": "stop"}, {"event": "end", "status": "done"}, {"event": "new"}, {}, {"step": 3}]
    assert advance(Progress(), [start(), *odd]).step == 3


@given(st.lists(st.integers(0, 40), max_size=8))
def test_rows_taken_in_by_parts_amount_to_the_same(cuts):
    rows = [start(), *(step(number) for number in range(1, 30)), start(attempt=2, resumed_from=20), step(21), step(22)]
    whole, parts, begin = advance(Progress(), rows), Progress(), 0
    for cut in [*sorted(cuts), len(rows)]:
        parts = advance(parts, rows[begin:cut])
        begin = max(begin, cut)
    assert parts == whole


def test_of_a_long_backlog_the_events_and_the_last_steps_are_read():
    rows = [start(), *(step(number) for number in range(1, 5001)), {"event": "checkpoint", "step": 5000}, step(5001)]
    found = rows_of(lines(rows))
    assert len(found) == RECENT + 2
    assert found[0] == record(rows[0]) and found[-2:] == [*map(record, rows[-2:])]
    assert found[1].step == 5001 - RECENT + 1


def test_a_line_that_is_no_row_is_left_out():
    assert rows_of([b"", b"{", b"[1]", b'{"step": 1}', b"\xff"]) == [MetricsRow(step=1)]


def test_rows_of_a_script_show_steps_a_second_and_the_last_known_loss():
    script = {**step(1), "epoch": None, "loss": None, "samples_per_second": None, "steps_per_second": None}
    rows = [start(total_steps=None, epochs=None), {**script, "seconds": None}]
    rows += [{**script, "step": n, "seconds": 0.25, "steps_per_second": 4.0} for n in range(2, 30)]
    rows[10]["loss"] = 0.5
    found = advance(Progress(), rows)
    assert (found.samples_per_second, found.seconds_left, found.loss) == (None, None, 0.5)
    assert round(found.steps_per_second or 0, 6) == 4.0
