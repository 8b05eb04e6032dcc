import io
import re
import time

import pytest
from rich.console import Console

from launcher.runs.states import State
from launcher.ui import display
from launcher.ui.display import Lines, Row
from launcher.ui.progress import Progress

RUNNING = State("running", attempt=1)
HALF = Progress(
    attempt=1,
    step=60,
    total_steps=120,
    epoch=1,
    epochs=4,
    loss=0.0831,
    loss_scale=65536.0,
    skipped=2,
    memory_bytes=512 * 2**20,
    samples_per_second=3410.5,
    seconds_left=12.0,
    accuracy=0.9,
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def lines():
    clock, out = Clock(), io.StringIO()
    shown = Lines(out, clock)

    def at(now, *rows):
        clock.now = now
        before = len(out.getvalue())
        shown.show(rows)
        return out.getvalue()[before:].splitlines()

    return at


def row(step=0, label="brave-otter", state=RUNNING, **more):
    return Row(label, state, HALF._replace(step=step, **more))


def test_a_line_says_all_that_is_known():
    assert display.line(HALF) == (
        "step 60/120  epoch 2/4  3410 samples/s  loss 0.0831  scale 65536 (2 skipped)  accuracy 0.9000  "
        "memory 512 MiB  12s left"
    )


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({}, "step 3"),
        ({"nonfinite": ("loss",)}, "step 3  loss not finite"),
        ({"steps_per_second": 4.0}, "step 3  4 steps/s"),
        ({"samples_per_second": 4.0, "of_tokens": True}, "step 3  4 tokens/s"),
        ({"samples_per_second": 4.0, "steps_per_second": 1.0}, "step 3  4 samples/s"),
    ],
)
def test_what_is_not_known_is_left_out(known, line):
    assert display.line(Progress(step=3, **known)) == line


def test_every_change_of_state_is_a_line(lines):
    assert lines(0, row(state=State("queued"))) == ["brave-otter  queued"]
    assert lines(0.5, row(state=State("queued"))) == []
    assert lines(1, row(state=RUNNING)) == ["brave-otter  running"]
    assert lines(2, row(state=State("running", attempt=2))) == ["brave-otter  running (attempt 2)"]
    ended = row(state=State("failed", "out of memory", attempt=2))
    assert lines(3, ended, row(label="calm-lake"))[0] == "brave-otter  failed (attempt 2): out of memory"


def test_how_the_only_run_ended_is_left_to_what_follows(lines):
    lines(0, row())
    assert lines(1, row(state=State("done"))) == []


@pytest.mark.parametrize(
    ("runs", "seconds", "epochs", "least", "most"),
    [
        (1, range(1, 61), False, 60 // display.LINE_EVERY, 60 // display.LINE_EVERY),
        (1, [tick / 10 for tick in range(1, 101)], True, 1, 10 / display.LINE_GAP),
        (50, range(1, 61), True, 0, 60 / display.LINE_GAP + 50),
    ],
    ids=["a long epoch", "short epochs", "many runs"],
)
def test_progress_is_a_line_now_and_then_and_no_flood(lines, runs, seconds, epochs, least, most):
    labels = [f"{index:03d}" for index in range(runs)]
    lines(0, *(row(label=label) for label in labels))
    printed = [
        line
        for step, now in enumerate(seconds, 1)
        for line in lines(now, *(row(step, label, epoch=step if epochs else 1) for label in labels))
    ]
    assert least <= len(printed) <= most


def test_a_run_without_a_step_for_long_has_a_line_as_often_as_the_silence_doubles(lines):
    silent = row(step=5, last=time.time() - 300)
    lines(0, silent)
    assert [lines(now, silent) for now in (60, 149)] == [[], []]
    (line,) = lines(151, silent)
    assert re.search(r"last step \d+m\d\ds ago$", line)
    assert lines(200, silent) == []
    stopping = silent._replace(state=State("stopping"))
    assert lines(900, stopping) == ["brave-otter  stopping"] and lines(1800, stopping) == []


def test_a_run_that_does_not_move_has_no_lines(lines):
    lines(0, row(step=5))
    assert lines(1000, row(step=5)) == []


def test_no_control_character_gets_through(lines):
    assert lines(0, row(label="\x1b7\x1b[31mx", state=State("queued", "a\nb"))) == ["?7x  queued: a?b"]


def test_only_a_terminal_that_can_move_its_cursor_gets_the_live_display(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for term, kind in (("xterm", display.Screen), ("dumb", Lines)):
        monkeypatch.setenv("TERM", term)
        shown = display.for_stream(Terminal())
        shown.close()
        assert isinstance(shown, kind)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display.for_stream(io.StringIO()), Lines)


def drawn(rows, width, height=25, words=""):
    out = io.StringIO()
    Console(file=out, width=width).print(display.table(rows, width, height, words))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_shows_every_figure_at_any_usual_width(width):
    header, line = drawn([row(60)], width)
    assert max(len(header), len(line)) <= width
    assert header.split() == ["run", "state", "step", "samples/s", "loss", "scale", "skipped", "memory", "left"]
    cells = [part for part in line.split() if not set(part) <= set("━╸╺─-")]
    assert cells == ["brave-otter", "running", "60/120", "3410", "0.0831", "65536", "2", "512", "MiB", "12s"]
    assert line[: header.index("samples/s") + len("samples/s")].endswith("3410"), "figures are aligned to the right"


def test_long_labels_and_numbers_leave_room_for_every_figure_in_80_columns():
    long = row(98_765, "003 amp=o1 batch=128 train.lr=0.01", State("stopping"), total_steps=100_000)
    header, line = drawn([long], 80)
    assert max(len(header), len(line)) <= 80
    for figure in ("98765/100000", "3410", "0.0831", "65536", "512 MiB", "12s", "003 amp=o1"):
        assert figure in line


@pytest.mark.parametrize(
    ("width", "figures"),
    [(40, ["98765/100000"]), (60, ["98765/100000", "3410", "0.0831"]), (75, ["3410", "0.0831", "65536", "12s"])],
)
def test_a_narrow_terminal_shows_fewer_figures_and_those_whole(width, figures):
    long = row(98_765, "003 amp=o1 batch=128 train.lr=0.01", State("unreachable"), total_steps=100_000)
    header, shown = drawn([long], width)
    assert max(len(header), len(shown)) <= width
    assert shown.startswith("003 amp=o1")
    cells = shown.split("unreachable")[1].split()
    assert set(figures) <= set(cells) and "…" not in "".join(cells)


def test_a_screen_without_a_run_is_a_header():
    assert drawn([], 60)[0].split()[:2] == ["run", "state"]


def test_a_sweep_larger_than_the_terminal_shows_what_runs_and_counts_the_rest():
    rows = [row(9, f"{index:03d}", State("done")) for index in range(30)]
    rows += [row(9, f"{index:03d}") for index in range(30, 33)]
    rows += [row(0, f"{index:03d}", State("queued")) for index in range(33, 500)]
    shown = drawn(rows, 120, height=24, words="asked to stop")
    assert len(shown) <= 23
    assert [line.split()[0] for line in shown[1:20]] == [f"{index:03d}" for index in range(30, 49)]
    assert shown[-2].strip() == "and 30 done, 451 queued" and shown[-1].strip() == "asked to stop"


def test_a_script_has_its_own_unit_and_without_a_known_length_no_full_bar():
    rows = [Row("a", RUNNING, Progress(step=3, steps_per_second=4.0))]
    shown = drawn(rows, 120)
    assert "steps/s" in shown[0] and "━" not in "".join(shown)
    rows.append(Row("b", RUNNING, Progress(step=3, samples_per_second=64.0)))
    assert "rate" in drawn(rows, 120)[0].split()


def test_a_running_run_shows_when_its_last_step_was_and_an_ended_one_does_not():
    silent = Progress(step=3, last=time.time() - 300)
    header, running, done = drawn([Row("a", RUNNING, silent), Row("b", State("done"), silent)], 120)
    assert "last step" in header and "ago" in running and "ago" not in done
