"""Blocks of a comparison: the rows that the meter of a user's script writes, and how it ends the script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amp_launcher.arguments import Arguments
from amp_launcher.around import block as blocks
from amp_launcher.around.block import Block, BlockOver
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.run_folder import RunFolder
from amp_launcher.settings import Settings


class Optimizer:
    pass


def meter(folder: Path, number: int, attempt: int, steps: int = 6) -> StepMeter:
    (folder / "attempts" / str(attempt)).mkdir(parents=True)
    return StepMeter(RunFolder(path=folder, attempt=attempt), block=Block(number=number, count=3, steps=steps))


def take(meter: StepMeter, steps: int, **more: Any) -> StepMeter:
    """Take so many steps, and end the script."""
    optimizer = Optimizer()
    for _ in range(steps):
        meter.stepped(optimizer, applied=True, **more)
    meter.finish()
    return meter


def complete(meter: StepMeter, **more: Any) -> StepMeter:
    """Take steps until the block is over."""
    with pytest.raises(BlockOver):
        take(meter, 1000, **more)
    meter.finish()
    meter.end_block()
    return meter


def steps_of(folder: Path) -> list[int]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["step"] for row in rows if "event" not in row]


def events(folder: Path, event: str, key: str) -> list[Any]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row[key] for row in rows if row.get("event") == event]


def test_the_steps_of_an_arm_are_numbered_through_its_blocks(tmp_path):
    complete(meter(tmp_path, 0, 1))
    complete(meter(tmp_path, 1, 2), count=4)  # steps of one execution beyond the block are left out
    assert steps_of(tmp_path) == list(range(1, 13))
    assert (events(tmp_path, "start", "total_steps"), events(tmp_path, "end", "block")) == ([18, 18], [0, 1])


def test_a_block_that_ended_early_leaves_the_numbers_of_its_other_steps_free(tmp_path):
    take(meter(tmp_path, 0, 1), 4)
    complete(meter(tmp_path, 1, 2))
    assert steps_of(tmp_path) == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("count", "message"), [(1, "the script ended before a step after the warm-up was timed"), (0, "no optimizer step")]
)
def test_a_block_without_a_timed_step_compares_nothing(tmp_path, count, message):
    short = take(meter(tmp_path, 0, 1), count)
    assert (short.block_problem or "").startswith(f"nothing can be compared: {message}")
    assert complete(meter(tmp_path, 1, 2)).block_problem is None


def test_the_rows_of_an_interrupted_block_are_replaced(tmp_path):
    complete(meter(tmp_path, 0, 1))
    take(meter(tmp_path, 1, 2), 3)
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 10, "lo')
    complete(meter(tmp_path, 1, 3))
    assert steps_of(tmp_path) == list(range(1, 13))
    assert events(tmp_path, "start", "attempt") == [1, 3]


def test_a_step_of_any_optimizer_after_the_end_of_a_block_raises_again(tmp_path):
    over = meter(tmp_path, 0, 1)
    calls: list[bool] = []
    over.when_over = lambda: calls.append(True)
    complete(over)
    with pytest.raises(BlockOver):
        over.stepped(Optimizer(), applied=True)
    assert calls == [True] and over.over and steps_of(tmp_path) == list(range(1, 7))


def test_the_device_is_waited_for_where_timed_steps_begin_and_end(tmp_path):
    waits: list[int] = []
    measured, optimizer = meter(tmp_path, 0, 1, steps=10), Optimizer()
    measured.wait = lambda: waits.append(measured.optimizers.steps_of(optimizer))
    with pytest.raises(BlockOver):
        while True:
            measured.stepped(optimizer, applied=True)
    assert waits == [2, 10]


def test_the_block_is_read_from_plan_and_run_folder(tmp_path):
    def chosen(**script: int) -> Arguments:
        return Arguments(settings=Settings(), run=tmp_path, plan={"script": script})

    assert blocks.of(chosen()) is None
    (tmp_path / blocks.FILE).write_text("2 5\n")
    assert blocks.of(chosen(block=50)) == Block(number=2, count=5, steps=50)
