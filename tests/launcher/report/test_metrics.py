import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report import metrics
from launcher.report.metrics import Changes, Curve

from .folders import rows


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@given(st.lists(st.floats(-1e6, 1e6), max_size=400), st.integers(2, 30))
def test_a_curve_of_any_length_has_few_points_in_order_whose_means_are_those_of_what_they_stand_for(values, limit):
    curve = Curve(limit)
    for x, y in enumerate(values):
        curve.add(x, y)
    points = curve.points()
    assert len(points) <= limit
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    if points:
        assert min(values) - 1e-6 <= min(y for _, y in points) and max(y for _, y in points) <= max(values) + 1e-6
        width = 1
        while math.ceil(len(values) / width) > limit:
            width *= 2
        assert points[0][1] == pytest.approx(sum(values[:width]) / len(values[:width]))


def test_a_curve_with_room_keeps_every_point():
    curve = Curve(10)
    for x in range(10):
        curve.add(x, x * x)
    assert curve.points() == tuple((x, x * x) for x in range(10))


def test_a_scale_is_kept_where_it_changed_and_where_it_ended():
    scale = Changes()
    for x, y in enumerate([4.0, 4.0, 4.0, 2.0, 2.0, 2.0]):
        scale.add(x, y)
    assert scale.points() == ((0, 4.0), (3, 2.0), (5, 2.0))


def test_a_scale_that_never_rests_keeps_within_its_bound_and_keeps_its_end():
    scale = Changes(limit=8)
    for x in range(1000):
        scale.add(x, float(x % 2))
    assert len(scale.points()) <= 9
    assert scale.points()[-1] == (999, 1.0)


def test_rows_become_losses_rates_and_evaluations(tmp_path):
    found = metrics.read(write(tmp_path / "metrics.jsonl", rows(20, rate=1000.0, scale=8.0)))
    assert found is not None
    assert (found.steps, found.last_step) == (20, 20)
    assert found.last_loss == pytest.approx(2.3 / 20)
    assert len(found.seconds) == 15
    assert found.rate == pytest.approx(15 * 128 / sum(found.seconds))
    assert (found.skipped, found.overflows) == (2, [10, 20])
    assert found.evaluations == [(10, 0.45), (20, 0.9)]
    assert found.problems == ()


def test_steps_in_blocks_are_timed_block_by_block(tmp_path):
    found = metrics.read(write(tmp_path / "metrics.jsonl", rows(20)), block=10)
    assert {number: block.timed for number, block in found.blocks.items()} == {0: 5, 1: 10}


def test_a_half_written_last_line_is_left_out_and_said(tmp_path):
    path = write(tmp_path / "metrics.jsonl", rows(5))
    whole = path.read_text()
    path.write_text(whole + '{"step": 6, "los')
    found = metrics.read(path)
    assert found.steps == 5
    assert found.problems == ("metrics.jsonl: its last line is half written and left out",)


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
        "\udcff\udcfe",
    ],
)
def test_a_damaged_line_costs_itself_alone(tmp_path, bad):
    path = write(tmp_path / "metrics.jsonl", rows(6)[:7])
    lines = path.read_text().splitlines()
    lines.insert(3, bad)
    path.write_bytes(("\n".join(lines) + "\n").encode(errors="surrogateescape"))
    found = metrics.read(path)
    assert found.steps == 6
    assert found.problems == ("metrics.jsonl: line 4 can't be read and left out",)


def test_a_loss_that_is_not_finite_is_told_with_its_step(tmp_path):
    written = rows(4)
    written[3]["loss"], written[3]["nonfinite"] = None, ["loss"]
    assert metrics.read(write(tmp_path / "metrics.jsonl", written)).nonfinite_at == 3


def test_no_file_is_no_metrics(tmp_path):
    assert metrics.read(tmp_path / "metrics.jsonl") is None


def test_a_million_steps_take_as_much_memory_for_curves_as_a_thousand(tmp_path):
    row = rows(1)[1]
    for count in (1000, 30_000):
        path = tmp_path / "metrics.jsonl"
        with open(path, "w") as stream:
            for step in range(1, count + 1):
                row["step"] = step
                stream.write(json.dumps(row) + "\n")
        found = metrics.read(path)
        assert found.steps == count
        assert metrics.POINTS / 2 <= len(found.loss.points()) <= metrics.POINTS


def test_the_parts_of_a_loss_are_curves_of_their_own(tmp_path):
    values = [{**each, "losses": {"generator": 1.0, "discriminator": 2.0 * each["step"]}} for each in rows(3)[1:4]]
    found = metrics.read(write(tmp_path / "metrics.jsonl", values))
    assert found.named["generator"].points() == ((1.0, 1.0), (2.0, 1.0), (3.0, 1.0))
    assert found.named["discriminator"].points()[-1] == (3.0, 6.0)


def counted(number, seconds=0.1, **more):
    """A row of a user's script."""
    row = {"step": number, "loss": None, "seconds": seconds, "samples_per_second": None, "timed": number > 5}
    return {**row, "steps_per_second": seconds and 1 / seconds, "memory_bytes": None, **more}


def test_rows_of_a_script_have_a_rate_in_steps(tmp_path):
    found = metrics.read(write(tmp_path / "metrics.jsonl", [counted(1, None), *(counted(n) for n in range(2, 21))]))
    assert found is not None
    assert (found.steps, found.problems, found.rate, found.unit) == (20, (), pytest.approx(10.0), "steps/s")
    assert (found.last_loss, found.last_nonfinite, found.nonfinite_at) == (None, False, None)


def test_samples_and_losses_that_a_script_logs_now_and_then_are_its_rate_and_curves(tmp_path):
    written = [counted(n) for n in range(1, 21)]
    for row in written[9::5]:
        row.update(loss=1 / row["step"], samples_per_second=640.0, logged={"perplexity": 2.0})
    found = metrics.read(write(tmp_path / "metrics.jsonl", written))
    assert found is not None
    assert (found.rate, found.unit) == (pytest.approx(640.0), "samples/s")
    assert (found.last_loss, found.last_nonfinite) == (0.05, False)
    assert [x for x, _ in found.loss.points()] == [10, 15, 20]
    assert found.logged["perplexity"].points() == ((10, 2.0), (15, 2.0), (20, 2.0))


def test_a_scripts_loss_that_is_not_finite_is_seen(tmp_path):
    written = [counted(1, loss=1.0), counted(2, nonfinite=["loss"]), counted(3)]
    found = metrics.read(write(tmp_path / "metrics.jsonl", written))
    assert found is not None
    assert (found.last_nonfinite, found.nonfinite_at, found.last_loss) == (True, 2, None)
