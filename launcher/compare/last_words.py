"""The lines that a terminal shows for runs that have ended, comparisons among them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from launcher.runs import store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State


def last_words(states: Mapping[Path, State], width: int = 0) -> list[str]:
    """What a terminal of so many columns (0: no limit) says of ended runs: verdict and tables of a comparison,
    all that is known of another run, a table of several."""
    now = time.time()
    if len(states) > 1:
        from launcher.ui import sweep_table

        return sweep_table.last_words(list(states), now, width)
    ((folder, state),) = states.items()
    if store.read(PlanRecord, folder / "plan.json", ("arms",)).arms:
        from launcher.compare import report  # and all that reports need

        return report.last_words(folder, state, now, width)
    from launcher.ui import ended_runs

    return ended_runs.of_run(folder, state, now, width)
