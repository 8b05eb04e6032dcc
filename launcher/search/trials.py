"""One trial of a search: what it measures on its way, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.runs.schema import ResultRecord
from launcher.runs.store import Run
from launcher.trackers.content import Scalars
from launcher.ui import sweep_table
from launcher.ui.live import Followed


class Trial:
    """A trial and its run."""

    def __init__(self, number: int, run: Run, metric: str) -> None:
        self.number, self.run = number, run
        self.shown = Followed(run.folder)
        self._scalars = Scalars(run.folder)
        names = {"loss": "train/loss", "accuracy": "eval/accuracy", "eval.loss": "eval/loss"}
        self._name, self._metric = names.get(sweep_table.plain(metric, names), metric), metric
        self._of_rows = not self._name.startswith("eval/")
        self._bucket: tuple[int, list[float]] = (0, [])
        self._last = 0

    def new_values(self) -> Iterator[tuple[int, float]]:
        """What it has measured on its way since the last call, by steps that all trials have in common.

        Rows of single steps are noisy and many: those whose number has the same two leading digits are one, their mean.
        """
        for point in self._scalars.new():
            value = point.values.get(self._name)
            if value is None or point.step <= self._last:  # rows from before a resume are given again
                continue
            if not self._of_rows:
                self._last = point.step
                yield point.step, value
                continue
            step, values = self._bucket
            if (now := rounded(point.step)) != step and values:
                self._last = point.step - 1
                yield step, sum(values) / len(values)
                values = []
            self._bucket = (now, [*values, value])

    def value(self, result: ResultRecord) -> float | None:
        """What the trial came to; None where it did not measure that."""
        known = sweep_table.measures(result)
        return known.get(sweep_table.plain(self._metric, known))


def rounded(step: int) -> int:
    """The step with zeros behind its first two digits: 7, 42, 460 for 469."""
    unit = int(10 ** max(0, len(str(step)) - 2))
    return step // unit * unit
