"""`export RUN to=TRACKER`: give runs to TensorBoard, MLflow or Weights & Biases, from outside the job."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amp_launcher.typed import nearest
from launcher.commands.arguments import one_of, split
from launcher.config.paths import expanded
from launcher.errors import TYPED, Unavailable, UsageError
from launcher.executors import backends, tracker_packages
from launcher.report import page, read, sections
from launcher.report.read import Evidence
from launcher.runs import ownership, run_ids, run_roots
from launcher.runs.store import Run
from launcher.trackers.mlflow_runs import Mlflow
from launcher.trackers.sending import Stream, Tracker
from launcher.trackers.tensorboard_events import TensorBoard
from launcher.trackers.wandb_runs import Wandb

TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": lambda _: Mlflow(),
    "wandb": lambda _: Wandb(),
}
"""Each is given a folder for its files, and imports its own client."""
INTERVAL = 5.0
"""Seconds between two looks at a run that is followed."""
DEVICES_EVERY = 60.0
"""Seconds between two readings of all samples of its GPUs."""
PATIENCE = 30.0
"""Seconds before a tracker that did not answer is asked again."""


def main(words: Sequence[str], *, follow: bool) -> int:
    """Returns the exit code. Raises `LauncherError`."""
    names, roots, own = split(words, ("to", "dir"))
    if own["to"] not in TRACKERS:
        raise UsageError(f"to={own['to']} is not one of {', '.join(TRACKERS)}{nearest(own['to'], TRACKERS)}{TYPED}")
    if "dir" in own and own["to"] != "tensorboard":
        raise UsageError(f"dir= is for to=tensorboard; {own['to']} reads its place from its environment variables")
    if not names:
        raise UsageError("export takes a run or sweep: python -m launcher export RUN|SWEEP to=tensorboard")
    chosen = one_of("export", names, roots)
    ownership.refuse_other_users("export", chosen.runs)
    tracker_packages.refuse_old_packages(own["to"], "to")
    try:
        tracker = TRACKERS[own["to"]](Path(os.path.abspath(expanded(own.get("dir") or "tensorboard"))))
    except ImportError:
        raise UsageError(f"to={own['to']} needs its package: pip install 'amp-launcher[{own['to']}]'") from None
    with contextlib.ExitStack() as locks:
        for run in chosen.runs:  # two at once would send everything twice
            locks.enter_context(run_roots.alone_with(run.folder, ".export", "exported"))
        export = Export(chosen.runs, chosen.sweep, tracker)
        try:
            if follow:
                _follow(export)
            else:
                export.update(devices=True, keep_open=False)
        except KeyboardInterrupt:
            export.close()
            raise
        except Unavailable as error:
            raise Unavailable(f"{error}; nothing is lost, and the same command later sends the rest") from None
    what = chosen.runs[0].id if len(chosen.runs) == 1 else f"{len(chosen.runs)} runs"
    print(f"{export.sent} values of {what} sent" if export.sent else "nothing new to send")
    print(tracker.told())
    return 0


class Export:
    """The runs of one command on their way to a tracker."""

    def __init__(self, runs: Sequence[Run], sweep: str | None, tracker: Tracker) -> None:
        self.sent = 0
        self.ended = False
        self._runs, self._sweep, self._tracker = runs, sweep, tracker
        self._streams: dict[Path, Stream] = {}
        self._closed_groups: set[str] = set()

    def update(self, *, devices: bool, keep_open: bool = True) -> None:
        """Send what is new, of runs that have ended with their end, and of others until `close` if they are kept open.
        Raises `LauncherError`."""
        # The state first, the rows after it: what is finished writes no more, so none are missed.
        seen = backends.states_of(self._runs, follow=True)
        self.ended = all(entry.state.finished for entry in seen)
        for entry in seen:
            run, plan = entry.run, read.of_run(entry.run.folder, entry.run, entry.state, read=False)
            arms = read.of_arms(run.folder, plan.plan, entry.state, read=False)
            group = run.id if arms else run_ids.sweep_of(run.id)
            for evidence in arms or [plan]:
                stream = self._streams.get(evidence.run.folder)
                if stream is None:
                    stream = self._streams[evidence.run.folder] = Stream(evidence.run, self._tracker)
                self.sent += stream.update(evidence, group, _page(evidence), devices=devices)
                if evidence.state.finished or not keep_open:
                    stream.close()  # of a sweep of hundreds few are open at once
            if arms and entry.state.finished:
                self._close_group(run.id)
        if self.ended and self._sweep:
            self._close_group(self._sweep)
        backends.settle(seen)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _close_group(self, group: str) -> None:
        if self.sent and group not in self._closed_groups:
            self._tracker.close_group(group)
            self._closed_groups.add(group)


def _page(evidence: Evidence) -> Callable[[], str]:
    return lambda: page.render(sections.of_runs(evidence.label, [read.with_steps(evidence)]))


def _follow(export: Export) -> None:
    """Send new values until the runs have ended. A tracker that is down is reported once, and tried again."""
    down, devices_at = False, 0.0
    while True:
        now = time.monotonic()
        try:
            export.update(devices=now >= devices_at)
            if now >= devices_at:
                devices_at = now + DEVICES_EVERY
            if down:
                print("it answers again; what was missing is sent", file=sys.stderr)
            down = False
            if export.ended:
                return
        except Unavailable as error:
            if export.ended:
                raise
            if not down:
                print(f"{error}; it is asked again until it answers", file=sys.stderr)
            down = True
        time.sleep(PATIENCE if down else INTERVAL)
