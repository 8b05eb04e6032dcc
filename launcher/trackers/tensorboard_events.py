"""TensorBoard: an event file for each run, in folders by sweep and comparison."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import admit
from launcher.errors import UsageError, of_system
from launcher.trackers.content import Content, Point
from launcher.trackers.sending import Sink, Tracker

LONGEST_NAME = 100
"""Characters of a folder."""
_ODD = re.compile(r"[^\w=.,+-]+")


class TensorBoard(Tracker):
    """Event files below a folder, written record by record: the file that was sent so far is continued."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer import record_writer  # noqa: F401 (an error at once, where it is not installed)

        self._folder = folder
        self.place = f"tensorboard {folder}"

    def has(self, mark: dict[str, Any]) -> bool:
        size = mark.get("bytes")
        known = type(size) is int and size >= 0 and admit.is_path(mark.get("file"))
        return known and os.path.isfile(self._folder / mark["file"])

    def open(self, content: Content, mark: dict[str, Any]) -> Events:
        file = mark.get("file") or f"{_folder(content)}/events.out.tfevents.{int(content.started or 0)}.{content.id}"
        try:
            return Events(self._folder / file, {"file": file, **mark}, content)
        except OSError as error:
            raise UsageError(f"dir: {of_system(error)}; name a folder where you may write") from None

    def told(self) -> str:
        return f"tensorboard --logdir {self._folder}"


class Events(Sink):
    """The event file of one run."""

    def __init__(self, path: Path, mark: dict[str, Any], content: Content) -> None:
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.record_writer import RecordWriter

        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        # What was written after the record of it, before a kill, is written again.
        self._stream.truncate(mark.get("bytes", 0))
        self._stream.seek(0, os.SEEK_END)
        self._records = RecordWriter(self._stream)
        self.mark = mark
        if not self._stream.tell():
            time = content.started or 0.0
            self._write(time, file_version="brain.Event:2")
            self._write(time, summary=summary_v2.hparams_pb(dict(content.settings), content.id, time))
            tags = "\n".join(f"| {key} | {value.replace('|', '/')} |" for key, value in content.tags.items())
            self._text(time, 0, "tags", f"| tag | value |\n| --- | --- |\n{tags}")
            self._flush()

    def send(self, points: list[Point]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._write(point.time, step=point.step, summary=Summary(value=values))
        self._flush()

    def finish(self, content: Content, page: Callable[[], str]) -> None:
        verdict = content.verdict or "no verdict"
        self._text(content.ended or 0.0, content.attempt, "verdict", f"{content.state}; {verdict}")
        self._flush()

    def close(self) -> None:
        self._stream.close()

    def _text(self, time: float, step: int, name: str, text: str) -> None:
        from tensorboard.plugins.text import summary_v2

        self._write(time, step=step, summary=summary_v2.text_pb(name, text))

    def _write(self, time: float, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time, **what).SerializeToString())

    def _flush(self) -> None:
        self._stream.flush()
        self.mark = {**self.mark, "bytes": self._stream.tell()}


def _folder(content: Content) -> str:
    """TensorBoard's name for the run: its id, or in a sweep or comparison its number and own settings."""
    if content.group is None:
        return content.id
    number = content.id.rpartition("-")[2]
    label = content.label if content.label.startswith(number) else f"{number} {content.label}"
    return f"{content.group}/{_ODD.sub('_', label)[:LONGEST_NAME]}"
