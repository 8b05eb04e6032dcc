"""Planning a sweep, against Hydra's own multirun over the same configuration."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import PEERS, PYTHON, environment, launcher
from launcher.config.paths import conf_folder

CELLS, THEIRS = 1000, 48
LEVELS = ("o0", "o1", "o2", "o3")


def plan(folder: Path) -> Measured:
    environ = environment(folder, CONF=str(conf_folder()))
    ours, theirs, one = f"plan of {CELLS} cells", f"Hydra multirun, scaled to {CELLS} cells", "Hydra multirun of 1 cell"
    multirun = [PYTHON, str(PEERS / "hydra_sweep.py"), "--multirun"]
    cases = {
        ours: command(launcher("plan", *_words(CELLS)), folder, environ),
        theirs: command([*multirun, *_words(THEIRS, "++")], folder, environ),
        one: command([*multirun, "amp=o0", "++seed=0"], folder, environ),
    }
    timings = by_turns(cases, rounds=5)
    start = timings[one].median
    # Linear in the cells, except for the start-up, which is counted once.
    scaled = tuple(start + (seconds - start) * (CELLS - 1) / (THEIRS - 1) for seconds in timings[theirs].seconds)
    timings[theirs] = type(timings[theirs])(seconds=scaled)
    return Measured(
        claim="planning a sweep of 1,000 cells at least 20 times faster than Hydra's multirun",
        limit=1 / 20,
        timings=timings,
        note=f"Hydra's multirun was run over {THEIRS} cells with an empty job and scaled linearly",
    )


def _words(cells: int, force: str = "") -> list[str]:
    return [f"amp={','.join(LEVELS)}", f"{force}seed=range({cells // len(LEVELS)})"]
