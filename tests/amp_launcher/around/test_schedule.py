"""Which steps of a script are observed."""

from __future__ import annotations

from collections.abc import Container

import pytest

from amp_launcher.around.schedule import LOOK_EVERY, SHARE, SPAN, Schedule


class Run:
    """A run on a clock of its own, whose observed steps take longer."""

    def __init__(self, plain: float, observed: float, run: str = "a") -> None:
        self.now = 0.0
        self.schedule = Schedule(run, clock=lambda: self.now)
        self.spans: list[int] = []
        self._plain, self._observed = plain, observed

    def train(self, steps: int, changes: Container[int] = ()) -> Run:
        step = 1
        while step <= steps:
            for _ in range(2 * (step - 1 in changes)):  # of two modules
                self.schedule.ask(step - 1)
            if step == self.schedule.due:
                self.schedule.begin(step - 1)
                self.spans.append(step)
                self.now += SPAN * self._observed
                step += SPAN
                self.schedule.end(step - 1)
            else:
                self.now += self._plain
                step += 1
        return self

    def share(self) -> float:
        """Of the time, what observing took from the third span on."""
        return (len(self.spans) - 2) * SPAN * (self._observed - self._plain) / self.now


@pytest.mark.parametrize(("plain", "observed"), [(0.01, 0.05), (0.0005, 0.02), (1.0, 1.5)])
def test_steps_are_observed_to_the_end_in_at_most_a_hundredth_of_the_time(plain: float, observed: float) -> None:
    run = Run(plain, observed).train(60_000)
    assert run.spans[0] == 1 and 10 <= run.spans[1] < 20
    assert SHARE / 4 < run.share() <= SHARE
    assert run.spans[-1] > 30_000


def test_a_long_run_is_observed_to_its_end_in_a_bounded_number_of_spans() -> None:
    spans = Run(0.01, 0.02).train(2_000_000).spans
    assert len(spans) < 32 * 17 + 10
    assert spans[-1] > 1_900_000


def test_ranks_of_a_run_share_their_steps_and_other_runs_have_others() -> None:
    one, same, slower, other = (
        Run(0.01, cost, name).train(60_000).spans for cost, name in ((0.05, "a"), (0.05, "a"), (0.3, "a"), (0.05, "b"))
    )
    assert one == same
    assert len(slower) < len(one)
    assert len(set(slower) & set(one)) > len(slower) / 2
    assert len(set(one) & set(other)) < len(one) / 2


def test_a_change_is_observed_at_once_and_many_changes_cost_no_more() -> None:
    assert {3, 151} < set(Run(0.001, 0.05).train(200, changes=(2, 150)).spans)
    two_unpaid_for = [201, 301]
    assert Run(0.001, 0.5).train(3000, changes=(4, *range(100, 3000, 100))).spans == [1, 5, 101, *two_unpaid_for]
    run = Run(0.01, 0.05).train(60_000, changes=range(100, 60_000, 3))
    assert run.share() < 1.5 * SHARE


def test_one_step_of_each_block_is_looked_at_once_a_span_has_ended() -> None:
    schedule = Run(0.01, 0.05).schedule
    assert not any(map(schedule.looks, range(320)))
    schedule.end(2)
    looked = [step for step in range(1, 10 * LOOK_EVERY) if schedule.looks(step - 1)]
    assert [step // LOOK_EVERY for step in looked] == list(range(10))
    assert len({step % LOOK_EVERY for step in looked}) > 1
