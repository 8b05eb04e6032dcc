from __future__ import annotations

from pathlib import Path

import pytest

from amp_launcher.loop.protocols import Executed
from benchmarks import script_steps, steps
from benchmarks.steps import BLOCK, Turns

PER_EPOCH = 100


class Recipe:
    """An executor that writes down its steps, of which `prepared` make what they execute."""

    at_once = 1

    def __init__(self, done: list[str], prepared: set[int]) -> None:
        self._done, self._prepared = done, prepared

    def shares(self, order, epoch):
        return [[f"samples {step}"] for step in range(PER_EPOCH)]

    def execute(self, shares, first: int, count: int) -> Executed:
        self._done.append(f"{first + 1}")
        return Executed(loss=0.0, lr=0.0, outcome=None, prepared=first + 1 in self._prepared)


def run(total: int, *, watched: set[int] = frozenset(), prepared: set[int] = frozenset()) -> tuple[Turns, list[str]]:
    """The turns of so many steps, and all steps in their order; the hand-written loop's are `-`."""
    done: list[str] = []
    turns = Turns(Recipe(done, prepared), lambda chosen: done.append("-"), watched)
    shares = turns.shares(None, 0)
    for number in range(total):
        turns.execute(shares, number, 1)
    return turns.paired(), done


def test_blocks_take_turns_ours_theirs_theirs_ours() -> None:
    _, done = run(3 * BLOCK + 1)
    ours = [str(step) for step in range(1, 3 * BLOCK + 2)]
    theirs = "-" * 2 * BLOCK
    assert done == [*ours[:BLOCK], *theirs, *ours[BLOCK : 3 * BLOCK], *theirs, ours[-1]]


@pytest.mark.parametrize("blocks", [10, 11])
def test_both_sides_have_as_many_times_and_the_first_are_left_out(blocks) -> None:
    turns, _ = run(blocks * BLOCK + 1)
    timings = (turns.ours.cpu, turns.theirs.cpu, turns.ours.clock, turns.theirs.clock)
    assert {len(timing.seconds) for timing in timings} == {blocks - steps.WARM_UP}


def test_a_block_with_a_step_that_was_watched_or_prepared_is_no_time_and_none_is_taken_while_one_is_watched() -> None:
    for steps_done, odd in (
        (BLOCK + 1, {"watched": {2}}),
        (BLOCK + 1, {"prepared": {BLOCK}}),
        (2 * BLOCK + 1, {"watched": {BLOCK + 1}}),
    ):
        assert "-" not in run(steps_done, **odd)[1]


def test_the_recipe_itself_runs_beside_the_hand_written_loop(tmp_path: Path) -> None:
    sizes = ("train.width=8", "train.layers=1", "batch=8", f"steps={8 * BLOCK}"), "one layer of 8"
    trainer = steps.sized("torch", "simplenet", "o1", sizes)
    measured = steps.step(tmp_path, trainer, trainer.module().BY_HAND["simplenet"])
    counts = {len(timing.seconds) for timing in measured.timings.values()}
    assert len(counts) == 1 and counts.pop() > 0
    assert measured.ratio > 0
    assert measured.claim == "a step of simplenet at o1 in torch at most 1.03 times a hand-written one"


def test_a_recipe_that_fails_is_no_time(tmp_path: Path) -> None:
    trainer = steps.sized("torch", "simplenet", "o1", (("train.width=0", "steps=8"), ""))
    with pytest.raises(RuntimeError, match="simplenet in torch ended with exit code 2"):
        steps.step(tmp_path, trainer, trainer.module().BY_HAND["simplenet"])


def test_the_benchmark_of_scripts_counts_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for level in ("o0", "o1"):
        assert script_steps._wrapped(tmp_path / level, tmp_path / "train.py", script_steps._step(), level) > 0
