"""The rows that one attempt of a user's script writes to metrics.jsonl, behind those of earlier attempts."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recipes import metrics
from recipes.metrics import MetricsWriter
from recipes.run_folder import RunFolder, Superseded
from recipes.trainer.block import Block

Row = dict[str, Any]
SHORT = 50
"""Rows of an attempt that are kept where there is no file."""
BATCH = 1000
"""Rows written at once where all are written again."""


class AttemptRows:
    """Buffers and writes rows. What is not yet known of them can be added at the attempt's end."""

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
        """Not yet written."""
        self._kept: list[Row] = []
        """Where there is no file: the attempt's first ones."""
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
        """Over all attempts, of what is written."""
        return self._writer.summary

    @property
    def newest(self) -> Row | None:
        """The last row, if it is not written yet."""
        return self._waiting[-1] if self._waiting else None

    def add(self, row: Row) -> None:
        self._waiting.append(row)
        self._added += 1
        if self._path is None and len(self._kept) < SHORT:
            self._kept.append(row)

    def evaluated(self, step: int, measures: Mapping[str, float]) -> None:
        """The script has measured its held-out accuracy or loss."""
        self._append([{"event": "eval", "step": step, "epoch": None, **measures, "time": time.time()}])

    def block_ended(self, number: int) -> None:
        """The block of that number has no more rows, and they count."""
        self._append([{"event": "end", "block": number, "time": time.time()}])

    def write(self, memory: int | None, *, hold: bool = False) -> None:
        """Write the rows that wait, but the newest where that is on `hold`. The last one written gets the `memory`."""
        rows = self._waiting[:-1] if hold else self._waiting
        self._waiting = self._waiting[-1:] if hold else []
        if rows:
            rows[-1]["memory_bytes"] = memory
            self._append(rows)

    def ended_by(self, when: float) -> int:
        """How many of this attempt's written rows are of steps that had ended by that time."""
        rows = iter(self._kept) if self._path is None else metrics.read(self._path)
        own = itertools.dropwhile(lambda row: row.get("time", 0.0) < self._start["time"], rows)
        return sum("event" not in row and row["time"] <= when for row in own)

    def rewrite(self, change: Callable[[int, Row], Row], first: int | None = None) -> None:
        """Write this attempt's rows again as `change` makes them of their place, counted from 0, and themselves.

        Rows of earlier attempts from step `first` on are left out: the script went on from an older checkpoint. What
        waits is only changed. Without a file only the first `SHORT` rows are there to change.
        """
        self._leave_to_later_attempt()
        if first is not None:
            self._start = {**self._start, "resumed_from": first - 1 if first > 1 and self.before else None}
        if self._path is None:
            if self._added <= SHORT:
                rows = list(self._changed(iter([self._start, *self._kept[: self._added - len(self._waiting)]]), change))
                self._writer = MetricsWriter(None)
                self._writer.append(rows)
            return
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._write_again(aside, change, first)
            self._leave_to_later_attempt()  # of many rows it took a while
            if self._path is None:
                return
            os.replace(aside, self._path)
        finally:
            aside.unlink(missing_ok=True)
        self._writer = MetricsWriter(self._path, self._path.stat().st_size)

    def _append(self, rows: list[Row]) -> None:
        self._leave_to_later_attempt()
        self._writer.append(rows)

    def _leave_to_later_attempt(self) -> None:
        """Write no more where the file is a later attempt's."""
        if self._folder is not None:
            try:
                self._folder.check_ours()
            except Superseded:
                self._folder, self._path, self._writer = None, None, MetricsWriter(None)

    def _write_again(self, aside: Path, change: Callable[[int, Row], Row], first: int | None) -> None:
        assert self._path is not None
        writer = MetricsWriter(aside)
        rows = self._changed(metrics.read(self._path), change, first)
        while batch := list(itertools.islice(rows, BATCH)):
            writer.append(batch)
        writer.offset()

    def _changed(
        self, rows: Iterator[Row], change: Callable[[int, Row], Row], first: int | None = None
    ) -> Iterator[Row]:
        places: Iterator[int] | None = None
        """Of this attempt's rows, once its start was read."""
        for row in rows:
            if row.get("event") == "start" and row.get("time") == self._start["time"]:
                places = itertools.count()
                yield self._start
            elif places is None:
                if first is None or row.get("step") is None or row["step"] < first:
                    yield row
            else:
                yield row if "event" in row else change(next(places), row)
        for row in self._waiting:
            row.update(change(next(places) if places else 0, row))


def _kept(path: Path, block: Block | None) -> int:
    """The bytes of metrics.jsonl that an attempt goes on behind: all of them, or those before its block, of which an
    attempt that was broken off may have left rows."""
    if block is None:
        return path.stat().st_size
    kept = 0
    with open(path, "rb") as stream:
        for line in stream:
            try:
                row = json.loads(line)
            except ValueError:  # damaged, which readers leave out
                row = {}
            if row.get("event") == "start" and (row.get("resumed_from") or 0) >= block.before:
                break
            kept += len(line)
    return kept
