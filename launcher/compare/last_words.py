"""The lines that a terminal shows for runs that have ended, comparisons among them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from launcher.runs import store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from launcher.ui import ended_runs


def last_words(states: Mapping[Path, State], width: int = 0) -> list[str]:
    """The verdict and tables of one comparison; the summary of other runs."""
    if len(states) == 1:
        ((folder, state),) = states.items()
        if store.read(PlanRecord, folder / "plan.json", ("arms",)).arms:
            from launcher.compare import report  # and all that reports need

            return report.last_words(folder, state, time.time(), width)
    return ended_runs.last_words(states, width)
