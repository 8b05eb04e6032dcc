"""metrics.jsonl and what a run's rows amount to."""

from __future__ import annotations

import json
import math

import pytest

from amp_launcher.metrics import MetricsWriter, finite, read, warm_up


def row(step: int, loss: float = 1.0, rate: float = 100.0, **more: object) -> dict:
    values = {"step": step, "loss": loss, "samples_per_second": rate, "loss_scale": None, "skipped": False}
    return {**values, "timed": True, **more}


def steps(path) -> list[int]:
    return [row["step"] for row in read(path)]


def test_only_values_that_are_not_finite_become_null_and_are_named():
    cleaned = finite({"loss": math.inf, "eval": {"accuracy": math.nan}, "list": [1.0, -math.inf], "step": 3})
    assert cleaned == {
        "loss": None,
        "eval": {"accuracy": None},
        "list": [1.0, None],
        "step": 3,
        "nonfinite": ["loss", "eval.accuracy", "list.1"],
    }
    assert finite({"loss": 1.0}) == {"loss": 1.0}


def test_rows_are_whole_lines_of_json(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).append([row(1, math.nan), row(2)])
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert json.loads(lines[0])["nonfinite"] == ["loss"]


def test_a_run_that_goes_on_has_no_step_twice_and_sums_up_all_attempts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append([row(1, 4.0, 10.0), row(2, 3.0, 20.0, skipped=True), {"event": "eval", "accuracy": 0.5, "step": 2}])
    offset = writer.offset()
    writer.append([row(3), row(4)])
    path.write_bytes(path.read_bytes() + b'{"step": 5, "lo')
    resumed = MetricsWriter(path, offset)
    resumed.append([row(3, 2.0, 60.0)])
    assert [row["step"] for row in read(path) if "event" not in row] == [1, 2, 3]
    assert (resumed.summary.first_loss, resumed.summary.last_loss) == (4.0, 2.0)
    assert (resumed.summary.steps, resumed.summary.skipped) == (3, 1)
    assert resumed.summary.evaluation == {"accuracy": 0.5}
    assert resumed.summary.throughput()["mean"] == 30.0


def test_a_file_from_a_run_without_a_checkpoint_is_begun_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).append([row(1)])
    MetricsWriter(path).append([row(1)])
    assert steps(path) == [1]


def test_an_attempt_that_was_taken_for_dead_writes_nothing_into_the_rows_of_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsWriter(path)
    first.append([row(1)])
    second = MetricsWriter(path, first.offset())
    first.append([row(2)])
    second.append([row(2)])
    first.append([row(3)])
    assert steps(path) == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_goes_on_from_a_damaged_file_and_its_complete_rows_count(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append([row(step) for step in range(1, 6)])
    offset = writer.offset()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"garbage \xff{\n", b"[3]\n", b'{"step": 3}\n', lines[3], lines[4][:-9]]))
    resumed = MetricsWriter(path, offset)
    assert resumed.summary.steps == 2
    resumed.append([row(6)])
    assert steps(path) == [1, 4, 6]


def test_a_loss_that_was_not_finite_stays_so_in_the_summary(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append([row(1, math.inf)])
    assert math.isnan(writer.summary.first_loss)
    assert math.isnan(MetricsWriter(path, writer.offset()).summary.first_loss)


def test_throughput_is_of_timed_steps_alone():
    writer = MetricsWriter(None)
    writer.append([row(1, rate=1.0, timed=False), *(row(step, rate=float(step)) for step in range(2, 13))])
    assert writer.summary.throughput() == {
        "unit": "samples/s",
        "mean": 7.0,
        "median": 7.0,
        "p10": pytest.approx(3.0),
        "p90": pytest.approx(11.0),
        "data_share": None,
        "warmup_steps": 1,
        "steps": 11,
    }


def test_throughput_of_no_step_is_not_known_and_of_one_is_its_own():
    writer = MetricsWriter(None)
    assert writer.summary.throughput()["mean"] is None
    writer.append([row(1, rate=5.0)])
    assert {writer.summary.throughput()[key] for key in ("mean", "median", "p10", "p90")} == {5.0}


def test_the_share_of_time_spent_waiting_for_data_is_of_timed_steps_too():
    writer = MetricsWriter(None)
    writer.append([row(1, timed=False, seconds=2.0, data_seconds=2.0), row(2, seconds=2.0, data_seconds=0.5)])
    assert writer.summary.throughput()["data_share"] == 0.25


@pytest.mark.parametrize(("kernels", "share"), [(0.5, 0.25), (3.0, 1.0), (None, None)])
def test_the_share_in_which_the_gpu_computed_is_of_the_median_timed_step(kernels, share):
    recorded = {} if kernels is None else {"gpu_seconds": kernels}
    writer = MetricsWriter(None)
    writer.append([row(1, timed=False, seconds=9.0, **recorded), row(2, seconds=2.0), row(3, seconds=2.0)])
    assert writer.summary.throughput().get("gpu_busy_share") == share


def test_warm_up_is_ten_steps_or_a_fifth_of_a_short_attempt():
    assert [warm_up(steps) for steps in (0, 4, 10, 50, 1000)] == [0, 0, 2, 10, 10]
