"""Where an attempt at a run begins and ends: at its checkpoint, if there is one, and at its last step."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_launcher import run_folder
from amp_launcher.loop.progress import Progress
from amp_launcher.loop.protocols import State
from amp_launcher.loop.replay import Request
from amp_launcher.run_folder import RunFolder
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import ProcessGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    number: int
    """Counted from 1."""
    before: Progress
    """What earlier attempts did."""
    resumed_from: Path | None
    """The checkpoint; None at a run's beginning."""
    total: int
    """Steps of the whole run."""
    last: int
    """The attempt's own last step, counted from 1."""
    steps_per_epoch: int
    samples: int
    exact: bool
    """Whether this and every earlier attempt repeats bit by bit."""
    facts: Mapping[str, Any]
    """Facts of this rank that decide on the last bits of its arithmetic."""
    facts_of_ranks: tuple[dict[str, Any], ...]
    folder: RunFolder | None
    replays: bool
    """Whether this only repeats steps of another run, to be compared and not saved."""

    @property
    def first(self) -> int:
        """Steps that were done before."""
        return self.before.step

    @property
    def epochs(self) -> int:
        """Of the whole run, the last of which may be cut short."""
        return -(-self.total // self.steps_per_epoch)


def begin(
    settings: Settings,
    group: ProcessGroup,
    state: State,
    samples: int,
    facts: Mapping[str, Any],
    *,
    same_data: str,
    exact: bool,
    folder: Path | None,
    replay: Request | None,
) -> Attempt:
    """Restore the newest checkpoint of the folder. Collective.

    `same_data` is the digest of the only data that the run resumes on; empty where any will do. `exact`: this process
    repeats itself bit by bit. Raises `SettingsError` for too few samples, for other data than the checkpoint's, and for
    a run that is beyond its end.
    """
    steps_per_epoch = samples // settings.batch_size
    if steps_per_epoch == 0:
        raise SettingsError(f"batch={settings.batch} is more than the {samples} samples of data={settings.data.name}")
    total = settings.steps or (settings.epochs or 1) * steps_per_epoch
    launched = os.environ.get("LAUNCHER_ATTEMPT")
    if folder and launched and group.rank == 0:
        RunFolder(path=folder, attempt=int(launched)).check_ours()
    before, resumed_from = (state.resume(folder / "checkpoints") if folder else None) or (Progress(exact=exact), None)
    if same_data and before.data and before.data != same_data:
        raise SettingsError(
            f"data={settings.data.name} is other data than the run in {folder} was trained on: {same_data}, not "
            f"{before.data}; give it that data, or name another run folder to start anew",
            "data.name",
        )
    before = dataclasses.replace(before, data=same_data)
    if replay and before.step <= replay.first:  # the run's checkpoint; from here on it is the replay's own
        before = dataclasses.replace(before, seconds=0.0, metrics_offset=0, reports=())
    if before.step > total:
        raise SettingsError(
            f"the run in {folder} has done {before.step} steps, and this asks for {total} in all; "
            "say more epochs or steps",
            "steps" if settings.steps else "epochs",
        )
    own = {**state.machine(), **facts, "exact": exact and before.exact}
    number = int(launched) if launched else run_folder.next_attempt(folder, before.attempt)
    return Attempt(
        number=number,
        before=before,
        resumed_from=resumed_from,
        total=total,
        last=replay.step if replay else total,
        steps_per_epoch=steps_per_epoch,
        samples=samples,
        exact=exact and before.exact,
        facts=own,
        facts_of_ranks=tuple(group.gather(own)),
        folder=RunFolder(path=folder, attempt=number) if folder else None,
        replays=replay is not None and folder is not None,
    )
