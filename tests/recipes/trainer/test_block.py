"""Blocks of a comparison: what the meter of a user's script writes, and how it ends the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.arguments import Arguments
from recipes.run_folder import RunFolder
from recipes.settings import Settings
from recipes.trainer import block as blocks
from recipes.trainer import script_end
from recipes.trainer.block import Block, BlockOver
from recipes.trainer.step_meter import StepMeter


class Optimizer:
    """What steps."""


def meter(folder: Path, number: int, attempt: int, steps: int = 6) -> StepMeter:
    (folder / "attempts" / str(attempt)).mkdir(parents=True)
    return StepMeter(RunFolder(path=folder, attempt=attempt), block=Block(number=number, count=3, steps=steps))


def take(to: StepMeter, steps: int, optimizer: Optimizer | None = None, **more: int) -> None:
    optimizer = optimizer or Optimizer()
    for _ in range(steps):
        to.stepped(optimizer, applied=True, **more)
    to.finish()


def whole(to: StepMeter, **more: int) -> None:
    with pytest.raises(BlockOver):
        take(to, 1000, **more)
    to.finish()
    to.end_block()


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in rows(folder) if "event" not in row]


def test_the_steps_of_an_arm_are_numbered_through_its_blocks(tmp_path):
    whole(meter(tmp_path, 0, 1))
    whole(meter(tmp_path, 1, 2))
    assert steps(tmp_path) == list(range(1, 13))
    assert [row["total_steps"] for row in rows(tmp_path) if row.get("event") == "start"] == [18, 18]
    assert [row["block"] for row in rows(tmp_path) if row.get("event") == "end"] == [0, 1]


def test_a_block_that_ended_early_leaves_the_numbers_of_its_other_steps_free(tmp_path):
    short = meter(tmp_path, 0, 1)
    take(short, 4)
    short.end_block()
    whole(meter(tmp_path, 1, 2))
    assert steps(tmp_path) == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("count", "message"), [(1, "the script ended before a step after the warm-up was timed"), (0, "")]
)
def test_a_block_without_a_timed_step_compares_nothing(tmp_path, count, message):
    short = meter(tmp_path, 0, 1)
    take(short, count)
    assert (script_end._block_problem(short) or "").startswith(f"nothing can be compared: {message}")
    whole(enough := meter(tmp_path, 1, 2))
    assert script_end._block_problem(enough) is None


def test_the_rows_of_an_interrupted_block_are_replaced(tmp_path):
    whole(meter(tmp_path, 0, 1))
    take(meter(tmp_path, 1, 2), 3)
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 10, "lo')
    whole(meter(tmp_path, 1, 3))
    assert steps(tmp_path) == list(range(1, 13))
    assert [row["attempt"] for row in rows(tmp_path) if row.get("event") == "start"] == [1, 3]


def test_steps_of_one_execution_beyond_the_block_are_left_out(tmp_path):
    whole(meter(tmp_path, 0, 1), count=4)
    assert steps(tmp_path) == list(range(1, 7))


def test_a_step_of_any_optimizer_after_the_end_of_a_block_raises_again(tmp_path):
    over = meter(tmp_path, 0, 1)
    called: list[bool] = []
    over.when_over = lambda: called.append(True)
    whole(over)
    with pytest.raises(BlockOver):
        over.stepped(Optimizer(), applied=True)
    assert called == [True] and over.over and steps(tmp_path) == list(range(1, 7))


def test_the_device_is_waited_for_where_timed_steps_begin_and_end(tmp_path):
    waited: list[int] = []
    measured = meter(tmp_path, 0, 1, steps=10)
    optimizer = Optimizer()
    measured.wait = lambda: waited.append(measured.attempted(optimizer))
    with pytest.raises(BlockOver):
        take(measured, 1000, optimizer)
    assert waited == [2, 10]


def test_the_block_is_read_from_plan_and_run_folder(tmp_path):
    def chosen(**script: int) -> Arguments:
        return Arguments(settings=Settings(), run=tmp_path, plan={"script": script})

    assert blocks.of(chosen()) is None
    (tmp_path / blocks.FILE).write_text("2 5\n")
    assert blocks.of(chosen(block=50)) == Block(number=2, count=5, steps=50)
