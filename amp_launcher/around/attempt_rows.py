"""The rows that one attempt of a user's script appends to metrics.jsonl."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from amp_launcher import metrics
from amp_launcher.around.block import Block
from amp_launcher.metrics import FULL_WARM_UP, MetricsWriter
from amp_launcher.run_folder import RunFolder, Superseded, replacing

Row = dict[str, Any]


class AttemptRows:
    """Buffers and writes rows. Values that become known later can be added until the attempt ends."""

    def __init__(self, folder: RunFolder | None, world_size: int, block: Block | None = None) -> None:
        """Raises `OSError` where metrics.jsonl can't be written."""
        self._folder = folder
        self._path: Path | None = folder.metrics if folder else None
        size = _kept(self._path, block) if self._path and self._path.exists() else 0
        self._writer = MetricsWriter(self._path, size)
        self.before = block.before if block else self._writer.summary.last_step or 0
        """Number of the last step of earlier attempts."""
        self.skipped_before = self._writer.summary.skipped
        self._waiting: list[Row] = []
        """Rows that are not written yet."""
        self._kept: list[Row] = []
        """The attempt's first rows, where there is no file."""
        self._added = 0
        self._start: Row = {
            "event": "start",
            "attempt": folder.attempt if folder else 1,
            "total_steps": block.total if block else None,
            "epochs": None,
            "resumed_from": self.before or None,
            "world_size": world_size,
            "time": time.time(),
        }
        self._writer.append([self._start])

    @property
    def summary(self) -> metrics.Summary:
        """The summary of all attempts, over written rows."""
        return self._writer.summary

    @property
    def newest(self) -> Row | None:
        """The last row, if it is not written yet."""
        return self._waiting[-1] if self._waiting else None

    def add(self, row: Row) -> None:
        self._waiting.append(row)
        self._added += 1
        if self._path is None and len(self._kept) < FULL_WARM_UP:
            self._kept.append(row)

    def evaluated(self, step: int, measures: Mapping[str, float]) -> None:
        """Record an evaluation: the accuracy or loss on held-out data."""
        self._append([{"event": "eval", "step": step, "epoch": None, **measures, "time": time.time()}])

    def block_ended(self, number: int) -> None:
        """Record that the block has no more rows and that its rows are valid."""
        self._append([{"event": "end", "block": number, "time": time.time()}])

    def write(self, memory: int | None, *, hold: bool = False) -> None:
        """Write the buffered rows, with `hold` all but the newest. The last one written gets the `memory`, in bytes."""
        rows = self._waiting[:-1] if hold else self._waiting
        self._waiting = self._waiting[-1:] if hold else []
        if rows:
            rows[-1]["memory_bytes"] = memory
            self._append(rows)

    def rewrite(self, change: Callable[[int, Row], Row], first: int | None = None) -> None:
        """Replace each row of this attempt by `change(index, row)`; the index counts from 0.

        Rows of earlier attempts from step `first` on are dropped: the script resumed from an older checkpoint. Buffered
        rows are changed, not written. Without a file, an attempt of more than `FULL_WARM_UP` rows stays as it is.
        """
        self._leave_to_later_attempt()
        if first is not None:
            self._start = {**self._start, "resumed_from": first - 1 if first > 1 and self.before else None}
        if self._path is None:
            if self._added <= FULL_WARM_UP:
                rows = list(self._changed(iter([self._start, *self._kept[: self._added - len(self._waiting)]]), change))
                self._writer = MetricsWriter(None)
                self._writer.append(rows)
            return
        assert self._folder is not None
        with contextlib.suppress(Superseded), replacing(self._path) as file:
            for row in self._changed(metrics.read(self._path), change, first):
                file.write(metrics.line(metrics.finite(row)))
            self._folder.check_ours()  # of many rows it took a while
        self._leave_to_later_attempt()
        if self._path is not None:
            self._writer = MetricsWriter(self._path, self._path.stat().st_size)

    def _append(self, rows: list[Row]) -> None:
        self._leave_to_later_attempt()
        self._writer.append(rows)

    def _leave_to_later_attempt(self) -> None:
        """Stop writing where a later attempt owns the file."""
        if self._folder is not None:
            try:
                self._folder.check_ours()
            except Superseded:
                self._folder, self._path, self._writer = None, None, MetricsWriter(None)

    def _changed(
        self, rows: Iterator[Row], change: Callable[[int, Row], Row], first: int | None = None
    ) -> Iterator[Row]:
        indices: Iterator[int] | None = None
        """Of this attempt's rows; None until its start row was read."""
        for row in rows:
            if row.get("event") == "start" and row.get("time") == self._start["time"]:
                indices = itertools.count()
                yield self._start
            elif indices is None:
                if first is None or row.get("step") is None or row["step"] < first:
                    yield row
            else:
                yield row if "event" in row else change(next(indices), row)
        for row in self._waiting:
            row.update(change(next(indices) if indices else 0, row))


def _kept(path: Path, block: Block | None) -> int:
    """The bytes of metrics.jsonl that an attempt keeps: all of them, or those before its block, since an interrupted
    attempt may have left rows of the same block."""
    if block is None:
        return path.stat().st_size
    kept = 0
    with open(path, "rb") as stream:
        for line in stream:
            try:
                row = json.loads(line)
            except ValueError:  # a damaged line, which readers skip
                row = {}
            if row.get("event") == "start" and (row.get("resumed_from") or 0) >= block.before:
                break
            kept += len(line)
    return kept
