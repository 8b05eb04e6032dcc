"""One row for every optimizer step, without making the device wait: values stay on it until they are written."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from recipes.torch_.devices import World
from recipes.torch_.precision import StepOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    number: int
    epoch: int
    loss: torch.Tensor
    lr: float
    outcome: StepOutcome
    began: Any
    ended: Any
    timed: bool
    time: float


class Recorder:
    """Times steps and keeps what they gave until `flush`.

    On a GPU the time is between two CUDA events, read at the flush; on a CPU it is `perf_counter`'s.
    """

    def __init__(self, world: World, batch: int, skipped: int = 0) -> None:
        self.skipped = skipped
        """Steps skipped so far, those of earlier attempts included; as of the last flush."""
        self._world = world
        self._batch = batch
        self._steps: list[_Step] = []
        self._cuda = world.device.type == "cuda"
        self._began: Any = None

    def begin(self) -> None:
        """A step begins."""
        self._began = self._mark()

    def end(self, *, number: int, epoch: int, loss: torch.Tensor, lr: float, outcome: StepOutcome, timed: bool) -> None:
        """It has ended, as step `number` counted from 1. `timed` is whether its time says anything of the speed."""
        self._steps.append(
            _Step(
                number=number,
                epoch=epoch,
                loss=loss,
                lr=lr,
                outcome=outcome,
                began=self._began,
                ended=self._mark(),
                timed=timed,
                time=time.time(),
            )
        )

    def flush(self) -> list[dict[str, Any]]:
        """The rows of the steps since the last flush, the losses averaged over the ranks. Collective."""
        steps, self._steps = self._steps, []
        if not steps:
            return []
        losses = self._world.sum(_numbers([each.loss for each in steps]))
        skipped = _numbers([each.outcome.overflowed for each in steps])
        scales = _numbers([each.outcome.loss_scale for each in steps])
        norms = _numbers([each.outcome.grad_norm for each in steps])
        memory = peak_memory(self._world.device)
        rows = []
        for index, each in enumerate(steps):
            seconds = max(self._seconds(each), 1e-9)
            self.skipped += bool(skipped[index])
            rows.append(
                {
                    "step": each.number,
                    "epoch": each.epoch,
                    "loss": losses[index] / self._world.size,
                    "lr": each.lr,
                    "seconds": seconds,
                    "samples_per_second": self._batch / seconds,
                    "loss_scale": scales[index],
                    "skipped": bool(skipped[index]),
                    "skipped_total": self.skipped,
                    "grad_norm": norms[index],
                    "memory_bytes": memory,
                    "timed": each.timed,
                    "time": each.time,
                }
            )
        return rows

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, step: _Step) -> float:
        if self._cuda:
            return step.began.elapsed_time(step.ended) / 1000
        return step.ended - step.began


def peak_memory(device: torch.device) -> int:
    """The most bytes so far: allocated by torch on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage's, by platform
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _numbers(scalars: list[torch.Tensor | None]) -> list[Any]:
    """Scalars from the device, in one transfer; None where there was none in the first place."""
    present = [each.detach() for each in scalars if each is not None]
    values = iter(torch.stack(present).double().tolist() if present else [])
    return [None if each is None else next(values) for each in scalars]
