import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report import metrics
from launcher.report.metrics import Changes, Curve

from .folders import rows


def read(path, values, block=0):
    """What is read of a file of these rows."""
    (path / "metrics.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    return metrics.read(path / "metrics.jsonl", block)


@given(st.lists(st.floats(-1e6, 1e6), max_size=400), st.integers(2, 30))
def test_a_curve_of_any_length_has_few_points_in_order_each_a_mean_of_neighbours(values, limit):
    curve = Curve(limit)
    for x, y in enumerate(values):
        curve.add(x, y)
    points = curve.points()
    assert len(points) <= limit
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    if len(values) <= limit:
        assert points == tuple(enumerate(values))
    else:
        assert min(values) - 1e-6 <= min(y for _, y in points) and max(y for _, y in points) <= max(values) + 1e-6
        width = 1
        while math.ceil(len(values) / width) > limit:
            width *= 2
        assert points[0][1] == pytest.approx(sum(values[:width]) / len(values[:width]))


def test_a_scale_is_kept_where_it_changed_and_where_it_ended():
    scale = Changes()
    for x, y in enumerate([4.0, 4.0, 4.0, 2.0, 2.0, 2.0]):
        scale.add(x, y)
    assert scale.points() == ((0, 4.0), (3, 2.0), (5, 2.0))
    always = Changes(limit=8)
    for x in range(1000):
        always.add(x, float(x % 2))
    assert len(always.points()) <= 9
    assert (always.points()[0], always.points()[-1]) == ((0, 0.0), (999, 1.0))
    assert all(one != other for (_, one), (_, other) in itertools.pairwise(always.points()))


def test_rows_become_losses_rates_and_evaluations(tmp_path):
    seen = read(tmp_path, rows(20, rate=1000.0, scale=8.0))
    assert (seen.steps, seen.last_step, len(seen.speed.points())) == (20, 20, 15)
    assert seen.last_loss == pytest.approx(2.3 / 20)
    assert seen.rate == pytest.approx(15 / sum(1 / speed for _, speed in seen.speed.points()))
    assert seen.clock.points()[-1] == (20, 20.0)
    assert seen.memory.points() == ((1, 2.0**29), (20, 2.0**29))
    assert (seen.skipped, seen.overflows) == (2, [10, 20])
    assert seen.evaluations == [(10, 0.45), (20, 0.9)]
    assert seen.problems == ()


def test_steps_in_blocks_are_timed_block_by_block(tmp_path):
    blocks = read(tmp_path, rows(20), block=10).blocks
    assert {number: block.timed for number, block in blocks.items()} == {0: 5, 1: 10}


@pytest.mark.parametrize(
    "bad",
    [
        "\0\0\0\0",
        "[1, 2]",
        "3",
        '{"step": "seven"}',
        '{"step": 7}',
        '{"step": 7, "loss": [], "seconds": 1, "samples_per_second": 1}',
        '{"step": 7, "loss": 1, "seconds": NaN, "samples_per_second": 1}',
        '{"step": true, "loss": 1, "seconds": 1, "samples_per_second": 1}',
        '{"step": 7, "loss": 1e301, "seconds": 1, "samples_per_second": 1}',
        '{"step": 7, "loss": -1e301, "seconds": 1, "samples_per_second": 1}',
        '{"event": "start"} {"event": "eval"}',
        f'{{"event": "{"x" * metrics.LONGEST}"}}',
        "\udcff\udcfe",
    ],
)
def test_a_damaged_line_costs_itself_alone(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(row) for row in rows(6)[:7]]
    path.write_bytes("".join(f"{line}\n" for line in [*lines[:3], bad, *lines[3:]]).encode(errors="surrogateescape"))
    seen = metrics.read(path)
    assert seen.steps == 6
    assert seen.problems == ("metrics.jsonl: line 4 can't be read and left out",)


def test_of_several_damaged_lines_the_first_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "start"}\n1\n{"event": "start"}\n2\n')
    assert metrics.read(path).problems == ("metrics.jsonl: 2 lines, the first 2, can't be read and left out",)


def test_the_peak_of_memory_is_that_of_timed_steps_and_of_all_steps_of_a_script(tmp_path):
    falling = [{**row, "memory_bytes": 100 - row["step"]} for row in rows(8)[1:9]]
    assert read(tmp_path, falling).peak_memory == 94
    assert read(tmp_path, [counted(row["step"], memory_bytes=row["memory_bytes"]) for row in falling]).peak_memory == 99


def test_a_script_has_curves_of_the_first_names_that_it_logs_and_no_more(tmp_path):
    written = [counted(number, logged={"always": 1.0, f"once{number}": 1.0, "never": None}) for number in range(1, 13)]
    logged = read(tmp_path, written).logged
    assert list(logged) == ["always", *(f"once{number}" for number in range(1, metrics.NAMED))]
    assert len(logged["always"].points()) == 12


def test_tokens_are_counted_where_samples_are_text(tmp_path):
    written = [{**row, "tokens_per_second": 10 * row["samples_per_second"]} for row in rows(8)[1:9]]
    seen, samples = read(tmp_path, written), read(tmp_path, rows(8)[1:9])
    assert (seen.unit, samples.unit, seen.rate) == ("tokens/s", "samples/s", pytest.approx(10 * samples.rate))


def test_a_script_whose_clock_stood_still_has_no_rate(tmp_path):
    seen = read(tmp_path, [counted(number, 0.0) for number in range(1, 8)])
    assert (seen.rate, seen.unit, seen.speed.points()) == (None, "steps/s", ())


def test_a_loss_that_is_not_finite_is_noted_with_its_step(tmp_path):
    written = rows(4)
    written[3] |= {"loss": None, "nonfinite": ["loss"]}
    assert read(tmp_path, written).nonfinite_at == 3


def test_no_file_is_no_metrics(tmp_path):
    assert metrics.read(tmp_path / "metrics.jsonl") is None


@pytest.mark.parametrize("count", [1000, 30_000])
def test_a_curve_of_many_steps_has_a_fixed_number_of_points(tmp_path, count):
    seen = read(tmp_path, ({**rows(1)[1], "step": step} for step in range(1, count + 1)))
    assert seen.steps == count
    assert metrics.POINTS / 2 <= len(seen.loss.points()) <= metrics.POINTS


def test_the_parts_of_a_loss_are_curves_of_their_own(tmp_path):
    values = [{**row, "losses": {"generator": 1.0, "discriminator": 2.0 * row["step"]}} for row in rows(3)[1:4]]
    named = read(tmp_path, values).named
    assert named["generator"].points() == ((1.0, 1.0), (2.0, 1.0), (3.0, 1.0))
    assert named["discriminator"].points()[-1] == (3.0, 6.0)


def counted(number, seconds=0.1, **more):
    """A row of a user's script."""
    row = {"step": number, "loss": None, "seconds": seconds, "samples_per_second": None, "timed": number > 5}
    return {**row, "steps_per_second": seconds and 1 / seconds, "memory_bytes": None, **more}


def test_rows_of_a_script_have_a_rate_in_steps(tmp_path):
    seen = read(tmp_path, [counted(1, None), *(counted(number) for number in range(2, 21))])
    assert (seen.steps, seen.problems, seen.rate, seen.unit) == (20, (), pytest.approx(10.0), "steps/s")
    assert (seen.last_loss, seen.last_nonfinite, seen.nonfinite_at) == (None, False, None)


def test_samples_and_losses_that_a_script_logs_now_and_then_are_its_rate_and_curves(tmp_path):
    written = [counted(number) for number in range(1, 21)]
    for row in written[9::5]:
        row.update(loss=1 / row["step"], samples_per_second=640.0, logged={"perplexity": 2.0})
    seen = read(tmp_path, written)
    assert (seen.rate, seen.unit) == (pytest.approx(640.0), "samples/s")
    assert (seen.last_loss, seen.last_nonfinite) == (0.05, False)
    assert [x for x, _ in seen.loss.points()] == [10, 15, 20]
    assert seen.logged["perplexity"].points() == ((10, 2.0), (15, 2.0), (20, 2.0))


def test_the_last_loss_that_a_script_logged_counts(tmp_path):
    seen = read(tmp_path, [counted(1, loss=1.0), counted(2, nonfinite=["loss"]), counted(3)])
    assert (seen.last_nonfinite, seen.nonfinite_at, seen.last_loss) == (True, 2, None)
