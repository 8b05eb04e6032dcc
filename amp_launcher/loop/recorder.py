"""One row for every optimizer step without synchronizing the device: values stay there until they are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_launcher.loop.peak_memory import PeakMemory
from amp_launcher.loop.protocols import Executed
from amp_launcher.loop.spans import Span
from amp_launcher.world.device import Device
from amp_launcher.world.world import ProcessGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class _Execution:
    span: Span
    executed: Executed
    began: Any
    ended: Any
    timed: bool
    time: float
    busy: float | None


def _unknown() -> None:
    """Nothing was recorded."""


class Recorder:
    """Times executions of one or more steps and keeps their results until `flush`."""

    def __init__(self, group: ProcessGroup, device: Device, batch: int, skipped: int = 0, tokens: int = 0) -> None:
        """`batch` is in samples, of `tokens` each where they are text."""
        self.skipped = skipped
        """Steps skipped so far, those of earlier attempts included; as of the last flush."""
        self._group = group
        self.memory = PeakMemory(device)
        self._device = device
        self._batch, self._tokens = batch, tokens
        self._executions: list[_Execution] = []
        self._began: Any = None
        self._busy: Callable[[], float | None] = _unknown

    def begin(self, *, timed: bool, kernels: bool = False) -> None:
        """An execution begins. `timed`: its time and memory count, unless it turns out to compile. `kernels`: those of
        the GPU are recorded, which takes time."""
        self.memory.enter(timed=timed)
        self._busy = self._device.record_kernels() if kernels else _unknown
        self._began = self._device.mark()

    def end(self, executed: Executed, span: Span, *, timed: bool) -> None:
        """The execution of these steps has ended. `timed`: its time counts for the rate."""
        self._executions.append(
            _Execution(
                span=span,
                executed=executed,
                began=self._began,
                ended=self._device.mark(),
                timed=timed,
                time=time.time(),
                busy=self._busy(),
            )
        )

    def flush(self) -> list[dict[str, Any]]:
        """The rows of the steps since the last flush, the losses averaged over the ranks. Collective."""
        executions, self._executions = self._executions, []
        if not executions:
            return []
        counts = [execution.span.count for execution in executions]
        results = [execution.executed for execution in executions]
        losses = self._losses(results, counts)
        rates = self._device.numbers([result.lr for result in results], counts)
        skipped = self._device.numbers([result.outcome.overflowed for result in results], counts)
        scales = self._device.numbers([result.outcome.loss_scale for result in results], counts)
        norms = self._device.numbers([result.outcome.grad_norm for result in results], counts)
        memory = self.memory.peak()
        steps = [
            (execution, execution.span.first + offset)
            for execution in executions
            for offset in range(execution.span.count)
        ]
        rows = []
        for index, (execution, number) in enumerate(steps):
            seconds = max(self._device.seconds(execution.began, execution.ended), 1e-9) / execution.span.count
            self.skipped += bool(skipped[index])
            named = {name: values[index] for name, values in losses.items()}
            row = {
                "step": number,
                "epoch": execution.span.epoch,
                "loss": sum(named.values()),
                "lr": rates[index],
                "seconds": seconds,
                "samples_per_second": self._batch / seconds,
                "loss_scale": scales[index],
                "skipped": bool(skipped[index]),
                "skipped_total": self.skipped,
                "grad_norm": norms[index],
                "memory_bytes": memory,
                "timed": execution.timed,
                "time": execution.time,
            }
            if self._tokens:
                row["tokens_per_second"] = self._batch * self._tokens / seconds
            if len(named) > 1:
                row["losses"] = named
            if execution.busy is not None:
                row["gpu_seconds"] = execution.busy / execution.span.count
            if execution.executed.waited is not None:
                row["data_seconds"] = execution.executed.waited / execution.span.count
            rows.append(row)
        return rows

    def _losses(self, results: Sequence[Executed], counts: Sequence[int]) -> dict[str, list[float]]:
        """Every loss by name, averaged over the ranks, step by step."""
        by_name = [result.loss if isinstance(result.loss, Mapping) else {"loss": result.loss} for result in results]
        means = {}
        for name in by_name[0]:
            totals = self._group.sum(self._device.numbers([losses[name] for losses in by_name], counts))
            means[name] = [total / self._group.size for total in totals]
        return means
