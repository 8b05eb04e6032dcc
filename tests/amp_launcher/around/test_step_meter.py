"""Rows of a script's counted steps, with the values that the script logs."""

from __future__ import annotations

import json
import math
import sys

import pytest

from amp_launcher import metrics
from amp_launcher.around.attempt_rows import AttemptRows
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.job import library
from amp_launcher.job.logged import log, receiver
from amp_launcher.loop.divergence import Detector, Diverged
from amp_launcher.precision.levels import LossScale
from amp_launcher.run_folder import RunFolder

pytestmark = pytest.mark.filterwarnings("error")  # also of files that are left open


class Optimizer:
    pass


class Attempt:
    """A script under a meter whose clock this moves."""

    def __init__(self, folder, detector=None):
        self.now = 0.0
        self.meter = StepMeter(folder, detector=detector, clock=lambda: self.now)
        self.optimizer = Optimizer()

    def step(self, optimizer=None, seconds=1):
        self.now += seconds
        self.meter.stepped(optimizer or self.optimizer, True)

    def take(self, numbers, before=False):
        """Take a step for each of these numbers, and log it with the number as its loss."""
        for number in numbers:
            if before:
                log(number, loss=number)
            self.step()
            if not before:
                log(number, loss=number)

    def end(self):
        """Ends the script: the result's fields."""
        self.meter.finish()
        return self.meter.result()


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Starts the next attempt of a run. `amp_launcher.job` counts as imported."""
    numbers = iter(range(1, 10))

    def start(folder=True, detector=None):
        number = next(numbers)
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
        script = Attempt(RunFolder(path=tmp_path, attempt=number) if folder else None, detector)
        monkeypatch.setattr(receiver, "receive", script.meter.log)
        monkeypatch.setitem(sys.modules, "amp_launcher.job", object())
        return script

    return start


@pytest.fixture
def columns(tmp_path):
    """These keys of all rows of steps."""

    def read(*keys):
        rows = [row for row in metrics.read(tmp_path / "metrics.jsonl") if "event" not in row]
        return [tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]] for row in rows]

    return read


def test_logged_values_are_in_the_row_of_their_step(attempt, columns):
    script = attempt()
    for number in range(1, 4):
        script.step()
        log(number, loss={"generator": 1 / number, "critic": 2.5}, samples=32, lr=0.1, perplexity=number, epoch=number)
    result = script.end()
    assert columns("step", "loss", "lr") == [(step, pytest.approx(1 / step + 2.5), 0.1) for step in (1, 2, 3)]
    assert columns("samples_per_second") == [None, 32.0, 32.0]
    assert columns("losses")[0] == {"generator": 1.0, "critic": 2.5}
    assert columns("logged")[-1] == {"perplexity": 3.0}
    assert repr(columns("epoch")) == "[1, 2, 3]"
    assert result["loss"] == {"first": 3.5, "last": pytest.approx(1 / 3 + 2.5)}
    assert (result["throughput"]["unit"], result["throughput"]["counted"]) == ("samples/s", "Optimizer")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_scripts_own_numbers_are_kept_whether_it_logs_before_or_after_the_step(attempt, columns, first, before):
    script = attempt()
    script.take(range(first, first + 4), before)
    result = script.end()
    assert (result["steps"], result["updates"]) == (4, {"attempted": 4, "applied": 4})
    assert columns("step", "loss") == [(number, float(number)) for number in range(first, first + 4)]


def test_steps_between_logged_ones_have_rows_too(attempt, columns):
    script = attempt()
    for number in range(12):
        script.step()
        if number % 5 == 4:
            log(number, loss=number, samples=50)
    script.end()
    logged = {4: (4, 4.0, None), 9: (9, 9.0, 10.0)}
    expected = [logged.get(number, (number, None, None)) for number in range(12)]
    assert columns("step", "loss", "samples_per_second") == expected


def test_micro_batches_of_a_step_are_one_row(attempt, columns):
    script = attempt()
    script.step()
    for number in range(1, 9):
        log(number, loss=number, samples=8)
        if number % 4 == 0:
            script.step()
    script.end()
    assert columns("step", "loss") == [(1, 1.0), (4, 4.0), (8, 8.0)]
    assert columns("samples_per_second")[1:] == [24.0, 32.0]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_all_values_that_several_calls_log_for_one_step_are_kept(attempt, columns, before):
    script = attempt()
    for number in (1, 2):
        if not before:
            script.step()
        log(number, loss={"generator": 1.0}, perplexity=7)
        log(number, loss={"critic": 0.5}, samples=4, entropy=3)
        log(number, lr=0.1)
        if before:
            script.step()
    script.end()
    assert columns("loss", "losses") == [(0.5, {"generator": 1.0, "critic": 0.5})] * 2
    assert columns("lr", "logged") == [(0.1, {"perplexity": 7.0, "entropy": 3.0})] * 2
    assert columns("samples_per_second") == [None, 4.0]


@pytest.mark.parametrize(("resumed", "unlogged"), [(5, 0), (5, 2), (7, 0)])
def test_a_script_that_resumes_from_an_older_checkpoint_has_each_step_once(
    attempt, columns, tmp_path, resumed, unlogged
):
    script = attempt()
    script.take(range(1, 9))
    script.end()
    script = attempt()
    for _ in range(unlogged):
        script.step()
    script.take(range(resumed + unlogged + 1, 12))
    result = script.end()
    assert columns("step") == list(range(1, 12))
    rows = metrics.read(tmp_path / "metrics.jsonl")
    assert [row["resumed_from"] for row in rows if row.get("event") == "start"] == [None, resumed]
    assert (result["steps"], result["loss"]) == (11, {"first": 1.0, "last": 11.0})


def test_steps_before_the_first_logged_one_get_the_numbers_before_its_own(attempt, columns):
    script = attempt()
    for _ in range(2):
        script.step()
    script.take(range(102, 104))
    script.end()
    assert columns("step") == [100, 101, 102, 103]


def test_each_logged_step_has_a_row_if_no_steps_are_counted(attempt, columns):
    script = attempt()
    for number in range(0, 600, 10):
        script.now += 5
        log(number, loss=1.0, samples=100)
    result = script.end()
    assert columns("step", "seconds") == [(0, None), *((number, 0.5) for number in range(10, 600, 10))]
    assert (result["steps"], result["throughput"]["counted"]) == (590, "job.log")
    assert (result["throughput"]["mean"], result["throughput"]["unit"]) == (20.0, "samples/s")


def test_samples_of_several_steps_are_shared_among_them_and_observed_steps_not_timed(attempt):
    """Of 64 steps with 8 samples each, one a second, the two observed ones take ten seconds."""
    script = attempt(folder=False)
    for number in range(1, 65):
        observed = number in (41, 42)
        script.meter.disturbed = lambda observed=observed: observed
        script.step(seconds=10 if observed else 1)
        if number % 16 == 0:
            log(number, samples=32)
            log(number, samples=96)  # of the same step
    throughput = script.end()["throughput"]
    assert [throughput[key] for key in ("unit", "mean", "p10", "p90")] == ["samples/s", 8.0, 8.0, 8.0]


def test_epochs_do_not_become_step_numbers(attempt, columns):
    script = attempt()
    for epoch in range(2):
        for _ in range(6):
            script.step()
        log(epoch, loss=1.0, accuracy=0.5)
    assert script.end()["eval"] == {"accuracy": 0.5}
    assert columns("step") == list(range(1, 13))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_loss_that_is_nan_ends_the_run_with_the_message_of_a_recipe(attempt, tmp_path, before):
    script = attempt(
        detector=Detector(level="o1", mechanism="autocast", dtype="bfloat16", scale=LossScale(mode="none"))
    )
    script.step()
    log(1, loss=1.0)
    with pytest.raises(Diverged, match="the loss is nan since step 2; try a lower learning rate"):
        if before:
            log(2, loss=math.nan)
        script.step(seconds=0.1)  # no time to write rows
        if not before:
            log(2, loss=math.nan)
    script.end()
    assert list(metrics.read(tmp_path / "metrics.jsonl"))[-1]["nonfinite"] == ["loss"]


def test_a_norm_of_gradients_that_is_infinite_ends_nothing_since_a_fused_optimizer_may_have_skipped_the_step(attempt):
    script = attempt(
        detector=Detector(level="o1", mechanism="script", dtype="float16", scale=LossScale(mode="dynamic"))
    )
    script.step()
    log(1, loss=1.0, grad_norm=math.inf)


def test_steps_that_turn_out_to_be_skipped_at_the_end_were_not_applied(attempt):
    script = attempt()
    script.take(range(1, 5))
    script.meter.finish(skipped=1)
    assert script.meter.result()["updates"] == {"attempted": 4, "applied": 3}


def test_all_rows_are_written_before_the_process_is_ended(attempt, columns):
    script = attempt()
    script.take((1, 2))
    script.meter.close()
    assert columns("loss") == [1.0, 2.0]


def test_a_rate_that_is_unknown_has_its_reason(attempt):
    meter = attempt().meter
    assert meter.result()["throughput"]["why"] == "no optimizer step was seen"
    meter.uncounted = "it trains in C++"
    assert meter.result()["throughput"]["why"] == "it trains in C++"


def test_a_short_attempt_without_a_folder_has_a_summary(attempt):
    script = attempt(folder=False)
    script.take(range(20))
    result = script.end()
    assert (result["steps"], result["throughput"]["steps"]) == (20, 16)


def test_a_superseded_attempt_leaves_the_rows_of_the_later_one(attempt, tmp_path):
    first = attempt()
    first.step()
    first.meter.flush(hold=False)
    second = attempt()
    second.step()
    second.end()
    before = (tmp_path / "metrics.jsonl").read_text()
    for _ in range(3):
        first.step()
    first.end()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_an_attempt_that_is_superseded_while_it_rewrites_its_rows_leaves_them(tmp_path):
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    rows = AttemptRows(RunFolder(path=tmp_path, attempt=1), 1)
    rows.add({**dict.fromkeys(metrics.STEP), "step": 1, "skipped": False})
    rows.write(None)
    before = (tmp_path / "metrics.jsonl").read_text()

    def change(at, row):
        (tmp_path / "attempts" / "2").mkdir()
        return {**row, "step": 100}

    rows.rewrite(change)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_rows_are_written_about_once_a_second(attempt, tmp_path):
    script, sizes = attempt(), set()
    for _ in range(1000):
        script.step(seconds=0.01)
        sizes.add((tmp_path / "metrics.jsonl").stat().st_size)
    assert 8 <= len(sizes) <= 12


def test_rows_are_complete_json_while_the_script_runs(attempt, tmp_path):
    script = attempt()
    script.take(range(5))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("loss") for line in lines] == [None, 0.0, 1.0, 2.0, 3.0]


def test_without_a_launcher_a_line_is_printed_on_the_first_rank(capsys, monkeypatch):
    monkeypatch.setattr(receiver, "receive", None)
    log(3, loss=0.25, samples=64, lr=1e-3)
    log(4, loss={"generator": 0.5, "critic": None})
    log(5, loss={"critic": None})
    monkeypatch.setenv("RANK", "1")
    log(6, loss=0.25)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["step 3  loss 0.25  samples 64  lr 0.001", "step 4  loss 0.5  generator 0.5", "step 5"]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"loss": "much"}, TypeError, "loss='much' is not a number"),
        ({"samples": -1}, ValueError, "samples=-1 is less than 0"),
    ],
)
def test_a_value_that_can_not_be_logged_is_refused(values, error, message):
    with pytest.raises(error, match=rf"job\.log: {message}"):
        log(1, **values)


def test_the_rate_is_steps_by_their_time_pauses_included(attempt):
    script = attempt()
    for number in range(70):
        script.step(seconds=10 if number % 10 == 9 else 1)
    throughput = script.end()["throughput"]
    assert throughput["mean"] == pytest.approx(60 / (54 * 1 + 6 * 10))
    assert (throughput["median"], throughput["p90"]) == (1.0, 1.0)


def test_a_library_logs_until_the_script_logs_by_itself_and_a_loss_that_is_nan_ends_nothing(attempt, columns):
    script = attempt(detector=Detector(level="o0", mechanism="float32", dtype="float32", scale=LossScale(mode="none")))
    for number in range(1, 4):
        script.step()
        library.log(number, {"train_loss": math.nan, "lr": 0.5, "noise": 2.0, "word": "x", "accuracy": 0.5})
    script.step()
    log(4, loss=0.25, noise=1.0)
    library.log(4, {"train_loss": 7.0})
    script.end()
    assert columns("loss", "lr")[2:] == [(None, 0.5), (0.25, None)]
    assert columns("logged")[0] == {"noise": 2.0, "train_accuracy": 0.5}


def test_a_library_without_the_launcher_logs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(receiver, "receive", None)
    library.log(1, {"loss": 0.5})
    assert capsys.readouterr() == ("", "")


def test_another_optimizer_is_counted_once_the_first_is_gone(attempt, columns):
    script, first, second = attempt(), Optimizer(), Optimizer()
    for _ in range(3):
        script.step(first)
        script.step(second)
    del first
    for _ in range(4):
        script.step(second)
    result = script.end()
    assert (result["steps"], result["throughput"]["counted"]) == (7, "Optimizer, the first of 2 optimizers")
    assert columns("step") == list(range(1, 8))
