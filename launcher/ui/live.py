"""Following runs until they end: progress from their metrics.jsonl, states from their folders."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.executors import backends, interrupts, stopping
from launcher.runs import arms, follow, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ui import summary, tables
from launcher.ui.display import Display, Row, for_stream
from launcher.ui.own_output import OwnOutput
from launcher.ui.progress import Progress, advance, rows_of

INTERVAL = 0.5
"""Seconds between two updates; more where updates take long, so that they never take a tenth of one core."""
OUTPUT_INTERVAL = 0.2
"""The same where a run's own output is shown."""
LONGEST = 5.0
"""The longest interval: an update may have taken long because a network was down."""


class Followed:
    """One run and its progress; a comparison shows its arms instead of itself."""

    def __init__(self, folder: Path, label: str | None = None) -> None:
        plan = store.read(PlanRecord, folder / "plan.json", ("swept", "arms"))
        self.folder = folder
        self.label = summary.label_of(folder.name, plan) if label is None else label
        self.arms = [Followed(arm.run.folder, arm.label) for arm in arms.of(folder, plan)]
        self.state = State("queued")
        self.progress = Progress()
        self._lines = follow.Lines(folder / "metrics.jsonl")

    def read(self) -> None:
        afresh, lines = self._lines.read()
        self.progress = advance(Progress() if afresh else self.progress, rows_of(lines))
        for arm in self.arms:
            # Each block is an attempt; its number says nothing.
            arm.state = arms.state(Run(str(arm.folder.parent), arm.folder.name), self.state)._replace(attempt=1)
            arm.read()

    def rows(self) -> list[Row]:
        if not self.arms:
            return [Row(self.label, self.state, self.progress)]
        # The blocks of other arms come between those of one, so that its own pace gives no time left.
        return [Row(arm.label, arm.state, arm.progress._replace(seconds_left=None)) for arm in self.arms]


def watch(
    run_dirs: Sequence[Path],
    last_words: Callable[[dict[Path, State], int], list[str]],
    *,
    on_interrupt: Callable[[int], None] | None = None,
    output: bool = False,
) -> dict[Path, State]:
    """Show the runs until all have ended, then `last_words` of them for a terminal of so many columns. Returns the last
    state of each. `output` copies what the run prints, which is one then.

    The first Ctrl-C calls `on_interrupt(1)`, which is to ask the runs to stop; later ones call `on_interrupt(2)`, which
    is to kill them. It watches until they have ended. Without `on_interrupt` a Ctrl-C ends it at once.
    """
    followed = {str(run): Followed(run) for run in run_dirs}
    print(summary.title(run_dirs), flush=True)
    shown: Display = OwnOutput(run_dirs[0], sys.stdout, sys.stderr) if output else for_stream(sys.stdout)
    interval = OUTPUT_INTERVAL if output else INTERVAL
    with (
        contextlib.closing(shown) as display,
        contextlib.suppress(KeyboardInterrupt),  # where none is handled, so that no silent host delays it
        interrupts.held() if on_interrupt else contextlib.nullcontext(),
    ):
        handled = 0
        while True:
            began = time.monotonic()
            open_ones = [run for run in followed.values() if not run.state.finished]
            _refresh(open_ones)
            display.show([row for run in followed.values() for row in run.rows()])
            if all(run.state.finished for run in followed.values()):
                break
            until = time.monotonic() + max(interval, min(LONGEST, 10 * (time.monotonic() - began)))
            while time.monotonic() < until and interrupts.presses() == handled:
                time.sleep(0.05)
            if on_interrupt is not None and interrupts.presses() > handled:
                handled = interrupts.presses()
                if handled > 1:
                    display.say("killing")
                on_interrupt(min(handled, 2))
                if handled == 1:
                    display.say(_answer(run_dirs))
    states = {run.folder: run.state for run in followed.values()}
    if all(state.finished for state in states.values()):
        for line in last_words(states, tables.width_of(sys.stdout)):
            print(line)
    return states


def _refresh(open_ones: Sequence[Followed]) -> None:
    seen = backends.states_of((Run(str(one.folder.parent), one.folder.name) for one in open_ones), follow=True)
    for run, current in zip(open_ones, seen, strict=True):
        # The state first, the rows after it: what is finished writes no more, so none are missed.
        run.state = current.state
        if current.state.attempt:
            run.read()
    backends.settle(seen)


def _answer(run_dirs: Sequence[Path]) -> str:
    """The effect of the first Ctrl-C, in words."""
    stops = [stopping.stop_of(folder) for folder in run_dirs]
    if not any(stop.possible for stop in stops):
        return "with script.stop_signal=null a script runs to its end; Ctrl-C again kills it"
    if all(stop.script for stop in stops):
        seconds = max(stop.grace for stop in stops)
        return f"asked to stop; killed if it has not ended in {seconds:.0f} s; Ctrl-C again kills at once"
    return "asked to save and stop at the next step; Ctrl-C again kills"
