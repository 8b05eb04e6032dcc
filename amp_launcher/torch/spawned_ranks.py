"""Ranks that a script starts itself, by `torch.multiprocessing.spawn`, observed as those of torchrun are.

Each has the launcher's precision and observer around the script's function. It tells the script's own process what it
observed; the first tells it of its steps too, which are then counted as those of any script.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import current_process, util
from multiprocessing.connection import Connection, Listener
from typing import Any

from torch import multiprocessing

from amp_launcher.around import child_python
from amp_launcher.around.block import BlockOver
from amp_launcher.around.child_processes import RANKS
from amp_launcher.around.rank_reports import HURRY, Reports
from amp_launcher.around.replaced import replaced
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.job import library, stop
from amp_launcher.job.logged import Logged
from amp_launcher.loop.divergence import Diverged
from amp_launcher.torch.observe.script_observer import ScriptObserver
from amp_launcher.world import preemption

IN_PROCESSES = f"the script starts processes in which nothing is observed; {RANKS}"
_spawning: Any = sys.modules["torch.multiprocessing.spawn"]  # the module's name is a function's too


@dataclass(slots=True)
class Rank:
    """What one rank has told."""

    before: int = 0
    """Steps that were taken before it was started."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    observed: dict[str, Any] = field(default_factory=dict)
    """The observation where the proof failed."""
    trained_nothing: bool = False
    optimizers: dict[int, Any] = field(default_factory=dict)
    """What stands for its optimizers here, by their `id` there, until it ends."""
    runs: Callable[[], bool] = bool
    """Whether its process does; false after torch has waited for it."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when all that it told was taken; not where its process never told anything."""


class SpawnedRanks:
    """The ranks that a script starts from its own process, in which it has taken no step before."""

    def __init__(self, meter: StepMeter, observer: ScriptObserver) -> None:
        self._meter = meter
        self._observer = observer
        self._ranks: list[Rank] = []
        self.memory: int | None = None
        """The peak memory of a first rank, in bytes."""
        self.skipped_unseen = 0
        self.mechanism = ""
        """Of the precision that the first rank made itself."""
        self.profile: tuple[dict[str, Any], str] = {}, ""
        """What the profiler of a first rank left: a record, and a note."""

    @contextlib.contextmanager
    def watched(self, as_rank: Callable[..., Any]) -> Iterator[None]:
        """The script runs in here. `as_rank(address, resumed)` makes what runs in a rank (`spawned_rank`)."""
        original = _spawning.start_processes
        prepare = self._observer.guard.hook(functools.partial(self._prepare, as_rank))

        @functools.wraps(original)
        def start_processes(*given: Any, **named: Any) -> Any:
            before = len(self._ranks)
            with contextlib.ExitStack() as stack:
                for name, owner, value in prepare(original, *given, **named) or ():
                    stack.enter_context(replaced(owner, name, value))
                if len(self._ranks) > before:
                    stack.enter_context(preemption.term_left_to_ranks(lambda: stop.requests.called))
                context = original(*given, **named)
            for rank, process in zip(self._ranks[before:], getattr(context, "processes", ()), strict=False):
                rank.runs = process.is_alive
            return context

        with (
            replaced(_spawning, "start_processes", start_processes),
            replaced(multiprocessing, "start_processes", start_processes),
        ):
            yield

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ranks)

    def reports(self, patience: float) -> Reports:
        """What they have told; those that run yet are awaited for so many seconds."""
        until = time.monotonic() + patience
        for rank in self._ranks:
            while rank.runs() and time.monotonic() < until and not rank.ended.wait(HURRY):
                pass
            rank.ended.wait(HURRY)
        failed = next((rank for rank in self._ranks if rank.failure), Rank())
        return Reports(
            of_steps=[report for rank in self._ranks for report in rank.reports],
            failure=failed.failure,
            observed=failed.observed,
            trained_nothing=all(rank.trained_nothing for rank in self._ranks),
        )

    def _prepare(
        self, as_rank: Callable[..., Any], original: Callable[..., Any], *given: Any, **named: Any
    ) -> Sequence[tuple[str, Any, Any]]:
        """The attributes that make ranks of the processes that this call starts: name, owner and value."""
        call = inspect.signature(original).bind(*given, **named)
        call.apply_defaults()
        if self._observer.steps:
            return ()
        if call.arguments["start_method"] != "spawn":
            self._observer.warn(IN_PROCESSES)
            return ()
        for rank in self._ranks:
            if not rank.runs():
                rank.ended.wait(HURRY)  # for the rest of what it told
        before = self._meter.taken
        size = call.arguments["nprocs"]
        listener = Listener(family="AF_UNIX", backlog=size, authkey=current_process().authkey)
        ranks = [Rank(before) for _ in range(size)]
        self._ranks += ranks
        self._observer.children.are_observed = True
        threading.Thread(target=self._accept, args=(listener, ranks), name="ranks", daemon=True).start()
        in_rank = as_rank(str(listener.address), self._meter.resumed or before > 0)
        start = child_python.after("", util.spawnv_passfds)
        return ("_wrap", _spawning, in_rank), ("spawnv_passfds", util, start), ("spawned_ranks", library, size)

    def _accept(self, listener: Listener, ranks: Sequence[Rank]) -> None:
        with listener:
            for rank in ranks:
                connection = listener.accept()
                threading.Thread(target=self._hear, args=(connection, rank), name="rank", daemon=True).start()

    def _hear(self, connection: Connection, rank: Rank) -> None:
        """Take what one rank tells."""
        try:
            with connection, contextlib.suppress(EOFError, OSError):
                while True:
                    kind, *values = connection.recv()
                    getattr(self, f"_take_{kind}")(rank, *values)
        except Exception as error:
            self._observer.warn(f"hearing of a rank failed: {type(error).__name__}: {error}")
        finally:
            rank.optimizers.clear()
            rank.ended.set()

    def _take_reports(self, rank: Rank, reports: list[dict[str, Any]]) -> None:
        rank.reports = [{**report, "step": report["step"] + rank.before} for report in reports]

    def _take_failure(self, rank: Rank, failure: str, observed: dict[str, Any]) -> None:
        rank.failure, rank.observed = failure, observed

    def _take_end(self, rank: Rank, trained_nothing: bool) -> None:
        rank.trained_nothing = trained_nothing

    def _take_first(
        self, rank: Rank, memory: int | None, skipped: int, mechanism: str, profile: tuple[dict[str, Any], str]
    ) -> None:
        """The end of the first rank."""
        self.memory, self.skipped_unseen, self.mechanism = memory, self.skipped_unseen + skipped, mechanism
        if profile[0]:  # where several record, the trace is the last one's
            self.profile = profile

    def _take_step(
        self, rank: Rank, key: int, applied: bool, disturbed: bool, uncounted: str, named: dict[str, Any]
    ) -> None:
        optimizer = rank.optimizers.setdefault(key, _Optimizer())
        self._meter.uncounted = uncounted
        self._meter.disturbed = lambda: disturbed
        with contextlib.suppress(BlockOver):  # which the rank raises as well
            self._meter.stepped(optimizer, applied, **named)

    def _take_stop(self, rank: Rank, answered_true: bool) -> None:
        """It called `should_stop`, so that the script ends by itself where it is asked to stop."""
        stop.requests.called = True
        stop.requests.answered_true |= answered_true

    def _take_log(self, rank: Rank, logged: Logged) -> None:
        try:
            self._meter.log(logged)
        except Diverged as error:  # as above
            rank.failure = str(error)
        except BlockOver:
            pass


class _Optimizer:
    """Stands for an optimizer of another process."""
