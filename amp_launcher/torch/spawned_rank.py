"""One rank that a script starts by `torch.multiprocessing.spawn`, in its own process: see `spawned_ranks`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import current_process, parent_process
from multiprocessing.connection import Client, Connection
from typing import Any

from amp_launcher.around import block as blocks
from amp_launcher.around.block import Block, BlockOver
from amp_launcher.around.early import EarlyVerdict, NotProved
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.wrapper import Started
from amp_launcher.job import logged as script_log
from amp_launcher.job import stop
from amp_launcher.job.logged import Logged
from amp_launcher.loop.divergence import Detector
from amp_launcher.precision.listeners import heard_by
from amp_launcher.torch.wrapper import TorchWrapper


@dataclass(frozen=True, slots=True)
class SpawnedRank:
    """Stands for torch's `_wrap`, which runs the script's function in a new process: observed, and told of at
    `address`."""

    started: Started
    address: str
    resumed: bool
    """Whether steps were taken before, by which nothing ends early."""

    def __call__(self, function: Callable[..., Any], rank: int, *others: Any) -> None:
        run = sys.modules["torch.multiprocessing.spawn"]._wrap
        with contextlib.ExitStack() as around:
            telling = failure = None
            try:
                telling = self._observe(rank, around)
            except Exception as error:
                around.close()
                failure = f"{type(error).__name__}: {error}"
            # torch has the kernel end a rank with the process that starts it, but only from here on.
            if (starter := parent_process()) and not starter.is_alive():
                sys.exit(f"script: rank {rank} ends, as the process that started it has ended")
            if failure:
                print(f"script: warning: rank {rank} is not observed: {failure}", file=sys.stderr)
            try:
                run(function, rank, *others)
            except BlockOver:
                pass
            except NotProved as ended:
                if telling:
                    telling.tell("failure", str(ended), telling.early.observed)
                sys.exit(1)

    def _observe(self, rank: int, around: contextlib.ExitStack) -> Telling:
        """Apply the precision, and observe, until `around` is closed."""
        chosen = self.started.chosen
        connection = around.enter_context(Client(self.address, authkey=current_process().authkey))
        wrapper = TorchWrapper(self.started, spawned=rank)
        early = EarlyVerdict(chosen.settings, rank, resumed=self.resumed, run=chosen.run)
        telling = Telling(connection, wrapper, early)
        meter = _ToldMeter(telling, rank, wrapper.detector(chosen.settings.amp.level), blocks.of(chosen))
        script_log.receiver.receive = meter.log
        stop.requests.tell = lambda: telling.tell("stop", stop.requests.answered_true)
        around.callback(telling.end, meter if rank == 0 else None)
        around.enter_context(heard_by(wrapper.notice))
        around.enter_context(wrapper.around(meter))
        return telling


class Telling:
    """What a rank tells the process that started it."""

    def __init__(self, connection: Connection, wrapper: TorchWrapper, early: EarlyVerdict) -> None:
        self.early = early
        self._connection = connection
        self._wrapper = wrapper
        wrapper.tell_early(early)
        wrapper.observer.judge = self._judge

    def tell(self, kind: str, *values: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, and this process will
            self._connection.send((kind, *values))

    def _judge(self, reports: Sequence[dict[str, Any]]) -> None:
        self.tell("reports", [*reports])
        self.early.judge(reports)

    def end(self, meter: StepMeter | None) -> None:
        """Tell the rest; of the first rank, whose meter is given, what the result has of one rank alone."""
        wrapper = self._wrapper
        with wrapper.observer.guard():
            self.tell("reports", wrapper.reports())
            self.tell("end", wrapper.trained_nothing())
            if meter:
                mechanism = wrapper.mechanism() if wrapper.has_own_precision else ""
                profile = wrapper.profiling.record, wrapper.profiling.note
                self.tell("first", wrapper.device.peak_memory(), wrapper.skipped_unseen(), mechanism, profile)


class _ToldMeter(StepMeter):
    """Counts the steps of a rank for a block's end and for a divergence, and tells of those of the first rank."""

    def __init__(self, telling: Telling, rank: int, detector: Detector, block: Block | None) -> None:
        super().__init__(None, detector=detector, block=block)
        self._telling = telling
        self._rank = rank

    def stepped(self, optimizer: Any, applied: bool, *, name: str = "", **counted: Any) -> None:
        if self._rank == 0 and not self.over:
            name, state = name or type(optimizer).__name__, (bool(self.disturbed()), self.uncounted)
            self._telling.tell("step", id(optimizer), applied, *state, {**counted, "name": name})
        super().stepped(optimizer, applied, name=name, **counted)

    def log(self, logged: Logged) -> None:
        if self._rank == 0:
            self._telling.tell("log", logged)
            super().log(logged)
