"""Rows of a script's counted steps, with what the script logs of them."""

from __future__ import annotations

import json
import math
import time

import pytest

from recipes import metrics
from recipes.divergence import Detector, Diverged
from recipes.precision.levels import LossScale
from recipes.run_folder import RunFolder
from recipes.script_log import Logged, log, receiver
from recipes.trainer.library_records import Records
from recipes.trainer.logged_values import combined
from recipes.trainer.step_meter import StepMeter


class Optimizer:
    pass


class Clock:
    """Each step takes as long as it is moved on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Makes the meter of the next attempt, of which one second is one step. `recipes.job` counts as imported."""
    numbers = iter(range(1, 10))

    def start(folder=True, detector=None):
        number = next(numbers)
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
        run = RunFolder(path=tmp_path, attempt=number) if folder else None
        meter = StepMeter(run, detector=detector, clock=Clock())
        monkeypatch.setattr(receiver, "receive", meter.log)
        monkeypatch.setitem(__import__("sys").modules, "recipes.job", object())
        return meter

    return start


def step(meter, optimizer, **more):
    meter._clock.now += 1
    meter.stepped(optimizer, True, **more)


def rows(tmp_path):
    return list(metrics.read(tmp_path / "metrics.jsonl"))


def steps(tmp_path, *keys):
    step_rows = [row for row in rows(tmp_path) if "event" not in row]
    return [tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]] for row in step_rows]


def test_logged_values_are_in_the_row_of_their_step(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for number in range(1, 4):
        step(meter, optimizer)
        log(number, loss=1 / number, samples=32, lr=0.1, perplexity=number)
    meter.finish()
    assert steps(tmp_path, "step", "loss", "lr") == [(1, 1.0, 0.1), (2, 0.5, 0.1), (3, pytest.approx(1 / 3), 0.1)]
    assert steps(tmp_path, "samples_per_second") == [None, 32.0, 32.0]
    assert steps(tmp_path, "logged")[-1] == {"perplexity": 3.0}
    result = meter.result()
    assert (result["loss"], result["throughput"]["unit"]) == ({"first": 1.0, "last": pytest.approx(1 / 3)}, "samples/s")
    assert result["throughput"]["counted"] == "Optimizer"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_scripts_own_numbers_are_kept_whether_it_logs_before_or_after_the_step(attempt, tmp_path, first, before):
    meter, optimizer = attempt(), Optimizer()
    for number in range(first, first + 4):
        if before:
            log(number, loss=number)
        step(meter, optimizer)
        if not before:
            log(number, loss=number)
    meter.finish()
    assert steps(tmp_path, "step", "loss") == [(number, float(number)) for number in range(first, first + 4)]
    assert meter.steps == 4


def test_steps_between_two_that_are_logged_have_rows_too(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for number in range(12):
        step(meter, optimizer)
        if number % 5 == 4:
            log(number, loss=number, samples=50)
    meter.finish()
    assert steps(tmp_path, "step") == list(range(12))
    assert [each for each in steps(tmp_path, "step", "loss", "samples_per_second") if each[1] is not None] == [
        (4, 4.0, None),
        (9, 9.0, 10.0),
    ]


def test_micro_batches_of_a_step_are_one_row(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    step(meter, optimizer)
    for number in range(1, 9):
        log(number, loss=number, samples=8)
        if number % 4 == 0:
            step(meter, optimizer)
    meter.finish()
    assert steps(tmp_path, "step", "loss") == [(1, 1.0), (4, 4.0), (8, 8.0)]
    assert steps(tmp_path, "samples_per_second")[1:] == [24.0, 32.0]


def test_a_script_that_resumes_from_an_older_checkpoint_has_each_step_once(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for number in range(1, 9):
        step(meter, optimizer)
        log(number, loss=number)
    meter.finish()
    meter, optimizer = attempt(), Optimizer()
    for number in range(6, 12):
        step(meter, optimizer)
        if number > 7:
            log(number, loss=-number)
    meter.finish()
    assert steps(tmp_path, "step") == list(range(1, 12))
    assert [row["resumed_from"] for row in rows(tmp_path) if row.get("event") == "start"] == [None, 5]
    assert (meter.steps, meter.result()["loss"]) == (11, {"first": 1.0, "last": -11.0})


def test_each_logged_step_has_a_row_if_no_steps_are_counted(attempt, tmp_path):
    meter = attempt()
    for number in range(0, 60, 10):
        meter._clock.now += 5
        log(number, loss=1.0, samples=100)
    meter.finish()
    assert steps(tmp_path, "step", "seconds") == [(0, None), *((number, 0.5) for number in range(10, 60, 10))]
    assert meter.result()["throughput"]["counted"] == "job.log"
    assert (meter.steps, meter.result()["throughput"]["unit"]) == (50, "samples/s")


def test_the_rate_of_samples_that_are_logged_at_some_steps(attempt):
    """Of 64 steps with 8 samples each, one a second, those that were observed take ten."""
    meter, optimizer = attempt(folder=False), Optimizer()
    for number in range(1, 65):
        observed = number in (41, 42)
        meter.disturbed = lambda observed=observed: observed
        meter._clock.now += 9 * observed
        step(meter, optimizer)
        if number % 16 == 0:
            log(number, samples=32)
            log(number, samples=96)  # of the same step
    meter.finish()
    throughput = meter.result()["throughput"]
    assert [throughput[key] for key in ("unit", "mean", "p10", "p90")] == ["samples/s", 8.0, 8.0, 8.0]


def test_the_rate_of_samples_where_only_logged_steps_are_known(attempt):
    meter = attempt(folder=False)
    for number in range(0, 600, 10):
        meter._clock.now += 10
        log(number, samples=80)
    meter.finish()
    assert meter.result()["throughput"]["mean"] == 8.0


def test_epochs_do_not_become_step_numbers(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for epoch in range(2):
        for _ in range(6):
            step(meter, optimizer)
        log(epoch, loss=1.0, accuracy=0.5)
    meter.finish()
    assert steps(tmp_path, "step") == list(range(1, 13))
    assert meter.result()["eval"] == {"accuracy": 0.5}


def test_several_losses_are_summed_and_kept_by_name(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    step(meter, optimizer)
    log(1, loss={"generator": 1, "critic": 2.5})
    meter.finish()
    assert steps(tmp_path, "loss", "losses") == [(3.5, {"generator": 1.0, "critic": 2.5})]


def detector():
    return Detector(level="o1", mechanism="autocast", dtype="bfloat16", scale=LossScale(mode="none"))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_loss_that_is_nan_ends_the_run_in_the_words_of_a_recipe(attempt, tmp_path, before):
    meter, optimizer = attempt(detector=detector()), Optimizer()
    step(meter, optimizer)
    log(1, loss=1.0)
    with pytest.raises(Diverged, match="the loss is nan since step 2; try a lower learning rate"):
        if before:
            log(2, loss=math.nan)
            step(meter, optimizer)
        else:
            step(meter, optimizer)
            log(2, loss=math.nan)
    meter.finish()
    assert rows(tmp_path)[-1]["nonfinite"] == ["loss"]


def test_a_short_attempt_without_a_folder_has_a_summary(attempt):
    meter, optimizer = attempt(folder=False), Optimizer()
    for number in range(20):
        step(meter, optimizer)
        log(number, loss=number)
    meter.finish()
    assert (meter.steps, meter.result()["throughput"]["steps"]) == (20, 16)


def test_an_attempt_that_was_superseded_writes_no_more(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    step(meter, optimizer)
    meter.flush(hold=False)
    (tmp_path / "attempts" / "2").mkdir()
    for _ in range(3):
        step(meter, optimizer)
    meter.finish()
    assert steps(tmp_path, "step") == [1]


def test_an_attempt_that_was_superseded_leaves_the_rows_of_the_later_one(attempt, tmp_path):
    first, optimizer = attempt(), Optimizer()
    for _ in range(3):
        step(first, optimizer)
    first.flush(hold=False)
    second, other = attempt(), Optimizer()
    step(second, other)
    second.finish()
    before = (tmp_path / "metrics.jsonl").read_text()
    first.finish()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_the_epoch_that_is_logged_is_a_whole_number(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    step(meter, optimizer)
    log(1, loss=1.0, epoch=2)
    meter.finish()
    assert repr(steps(tmp_path, "epoch")) == "[2]"


def test_rows_are_written_about_once_a_second(attempt, tmp_path, monkeypatch):
    meter, optimizer = attempt(), Optimizer()
    writes = []
    monkeypatch.setattr(meter._rows._writer, "append", writes.append)
    for _ in range(1000):
        meter._clock.now += 0.01
        meter.stepped(optimizer, True)
    assert 8 <= len(writes) <= 11


def test_without_a_launcher_a_line_is_printed_on_the_first_rank(capsys, monkeypatch):
    monkeypatch.setattr(receiver, "receive", None)
    log(3, loss=0.25, samples=64, lr=1e-3)
    monkeypatch.setenv("RANK", "1")
    log(4, loss=0.25)
    assert capsys.readouterr().out == "step 3  loss 0.25  samples 64  lr 0.001\n"


def test_a_value_that_is_not_a_number_is_refused(monkeypatch):
    monkeypatch.setattr(receiver, "receive", None)
    with pytest.raises(TypeError, match=r"job\.log: loss='much' is not a number"):
        log(1, loss="much")


def test_the_rate_is_steps_by_their_time_pauses_included(attempt):
    meter, optimizer = attempt(), Optimizer()
    for number in range(70):
        meter._clock.now += 10 if number % 10 == 9 else 1
        meter.stepped(optimizer, True)
    meter.finish()
    throughput = meter.result()["throughput"]
    assert throughput["mean"] == pytest.approx(60 / (54 * 1 + 6 * 10))
    assert (throughput["median"], throughput["p90"]) == (1.0, 1.0)


def test_rows_are_complete_json_while_the_script_runs(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for number in range(5):
        step(meter, optimizer)
        log(number, loss=number)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("loss") for line in lines] == [None, 0.0, 1.0, 2.0, 3.0]


def test_values_logged_for_one_step_are_combined():
    joined = combined(Logged(step=1, samples=8, more={"a": 1}), Logged(step=2, loss=3, samples=8))
    assert (joined.step, joined.loss, joined.samples, joined.more) == (2, 3, 16, {"a": 1})


@pytest.mark.parametrize(
    ("saved", "numbers", "losses"),
    [(6, [1, 2, 3, 4, 5, 6], {2, 4, 6}), (9, [4, 5, 6, 7, 8, 9], {4, 6}), (4, [1, 2, 3, 4, 5, 6], {4, 6})],
    ids=["from the start", "resumed after step 3", "the second in this script"],
)
def test_the_last_saved_step_relates_a_librarys_numbers_to_ours(attempt, tmp_path, saved, numbers, losses):
    meter, optimizer = attempt(), Optimizer()
    for _ in range(6):
        step(meter, optimizer)
    meter.adopt(Records(steps={number: {"loss": 1.0} for number in (2, 4, 6)}, saved=(saved, time.time())))
    meter.finish()
    assert steps(tmp_path, "step") == numbers
    assert {number for number, loss in steps(tmp_path, "step", "loss") if loss is not None} == losses


def test_the_last_step_is_found_whatever_the_clock_of_its_checkpoint(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for _ in range(6):
        step(meter, optimizer)
    meter.adopt(Records(steps={number: {"loss": 1.0} for number in range(1, 7)}, saved=(6, time.time() - 3600)))
    meter.finish()
    assert steps(tmp_path, "step", "loss") == [(number, 1.0) for number in range(1, 7)]


def test_an_optimizer_that_was_there_is_counted_once_the_first_is_gone(attempt, tmp_path):
    meter, first, second = attempt(), Optimizer(), Optimizer()
    for _ in range(3):
        step(meter, first)
        step(meter, second)
    del first
    for _ in range(4):
        step(meter, second)
    meter.finish()
    assert (meter.steps, meter.counted) == (7, "Optimizer, the first of 2 optimizers")
    assert steps(tmp_path, "step") == list(range(1, 8))


def test_an_attempt_that_is_superseded_while_it_writes_its_rows_again_leaves_the_later_ones(attempt, tmp_path):
    meter, optimizer = attempt(), Optimizer()
    for _ in range(3):
        step(meter, optimizer)
    meter.flush(hold=False)
    before = (tmp_path / "metrics.jsonl").read_text()

    def change(at, row):
        (tmp_path / "attempts" / "2").mkdir(exist_ok=True)
        return {**row, "step": 100}

    meter._rows.rewrite(change)
    assert (tmp_path / "metrics.jsonl").read_text() == before
