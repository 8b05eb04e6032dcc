"""Sending what is new of a run to a tracker, and the record of what was sent.

A tracker gets each scalar of a step once: RUN/trackers.json has the last step of every scalar that was sent, by where
it was sent to. So a second export adds nothing, and one that was killed is continued.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from launcher.report.read import Evidence
from launcher.runs import store
from launcher.runs.decode import decode
from launcher.runs.store import Run
from launcher.trackers.content import Content, Point, Scalars, describe

RECORD = "trackers.json"
"""Of a run's folder, or an arm's."""
BATCH = 500
"""Points that are sent together; with a record after each."""


class Sink(Protocol):
    """One run in a tracker."""

    mark: dict[str, Any]
    """What the record keeps, to find the same run again: its id there."""
    delayed: bool = False
    """Whether what is sent is known to have arrived only once it was closed."""

    def send(self, points: list[Point]) -> None: ...

    def finish(self, content: Content, page: Callable[[], str]) -> None:
        """The end: state, verdict, and the report as HTML."""

    def close(self) -> None:
        """Nothing more is sent."""
        return


class Tracker(Protocol):
    """Where runs are sent to. All of it raises `Unavailable` where the tracker does not answer, `UsageError` where it
    refuses; to make one raises `ImportError` where its package is not installed."""

    place: str
    """Names the destination in records, without keys."""

    def has(self, mark: dict[str, Any]) -> bool:
        """Whether the run of that mark is still there."""
        return True

    def open(self, content: Content, mark: dict[str, Any]) -> Sink:
        """The run there, found again by its mark, or made."""

    def close_group(self, group: str) -> None:
        """All runs of the group have ended."""
        return

    def told(self) -> str:
        """How to look at it."""


class Sent(NamedTuple):
    """What one place has of a run."""

    steps: Mapping[str, int] = {}
    """The last of each scalar."""
    mark: Mapping[str, Any] = {}
    closing: str | None = None
    """Digest of the content that the run's end was sent with."""


class Stream:
    """One run, or arm, on its way to a tracker."""

    def __init__(self, run: Run, tracker: Tracker) -> None:
        self._run, self._tracker = run, tracker
        self._scalars = Scalars(run.folder)
        self._sink: Sink | None = None
        entry = _read(run).get(tracker.place)
        self._sent, _ = decode(Sent, entry if isinstance(entry, dict) else {})
        self._is_checked = not self._sent.mark

    def update(self, evidence: Evidence, group: str | None, page: Callable[[], str], *, devices: bool) -> int:
        """Send what is new, with the samples of `devices` if wanted, and the end of a run that has ended. Returns the
        scalars that were sent. Raises `LauncherError`; what was not sent is sent by the next call."""
        content = describe(evidence, group)
        closing = _digest(content) if content.ended is not None else None
        try:
            return self._send(content, self._points(evidence, devices, closing), closing, page)
        except BaseException:
            self._scalars, self._sink = Scalars(self._run.folder), None
            raise

    def _points(self, evidence: Evidence, devices: bool, closing: str | None) -> Iterator[Point]:
        yield from self._scalars.new()
        if devices or closing:
            yield from self._scalars.of_devices()
        if closing:
            yield self._scalars.at_end(evidence)

    def close(self) -> None:
        """Nothing more is sent."""
        if self._sink is not None:
            self._sink.close()
            self._save(self._sink)
            self._sink = None

    def _send(self, content: Content, points: Iterable[Point], closing: str | None, page: Callable[[], str]) -> int:
        if not self._is_checked and not self._tracker.has(dict(self._sent.mark)):
            self._sent = Sent()
        self._is_checked = True
        steps, count = dict(self._sent.steps), 0
        new = _unsent(points, steps)
        while batch := list(itertools.islice(new, BATCH)):
            sink = self._opened(content)
            sink.send(batch)
            count += sum(len(point.values) for point in batch)
            self._save(sink, delayed=sink.delayed, steps=dict(steps))
        if closing is not None and closing != self._sent.closing:
            sink = self._opened(content)
            sink.finish(content, page)
            self._save(sink, delayed=sink.delayed, closing=closing)
        return count

    def _opened(self, content: Content) -> Sink:
        if self._sink is None:
            self._sink = self._tracker.open(content, dict(self._sent.mark))
            self._save(self._sink)
        return self._sink

    def _save(self, sink: Sink, *, delayed: bool = False, **new: Any) -> None:
        """Note what was sent; in the record too, unless it is `delayed`."""
        self._sent = self._sent._replace(**new)
        if not delayed:
            self._sent = self._sent._replace(mark=sink.mark)
            sent = {**_read(self._run), self._tracker.place: self._sent._asdict()}
            store.write_json(self._run.folder / RECORD, {"schema": 1, "sent": sent})


def _unsent(points: Iterable[Point], steps: dict[str, int]) -> Iterator[Point]:
    """The points with what is beyond the last step of each scalar, which is noted in `steps`."""
    for point in points:
        values = {name: value for name, value in point.values.items() if point.step > steps.get(name, -1)}
        if values:
            steps.update(dict.fromkeys(values, point.step))
            yield point._replace(values=values)


def _digest(content: Content) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _read(run: Run) -> dict[str, Any]:
    sent = store.read_or_empty(run.folder / RECORD, own_in=run.root).get("sent")
    return sent if isinstance(sent, dict) else {}
