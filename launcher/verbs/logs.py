"""`logs`: what a run printed, as it printed it: its stdout to stdout, its stderr to stderr."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launcher import follow, queues, runs
from launcher.errors import UsageError
from launcher.runs import Run
from launcher.verbs.arguments import Parser, found, newest, positive, split

INTERVAL = 0.3
"""Seconds between two looks at a run that is followed."""
NAMES = ("stdout.log", "stderr.log")


def main(arguments: list[str]) -> int:
    parser = Parser("logs", "[-f] [--attempt N] [--lines N] [RUN]", "Print what a run wrote; without RUN the newest.")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--attempt", type=positive, metavar="N", help="of this attempt; else of the newest")
    parser.add_argument("--lines", type=positive, metavar="N", help="only the last N lines of each of the two")
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    run = _chosen(names, roots)
    attempts = runs.attempts(run.folder)
    if options.attempt is not None and options.attempt not in attempts:
        there = f"it has {', '.join(map(str, attempts))}" if attempts else "it has not started yet"
        raise UsageError(f"--attempt {options.attempt}: {run.id} has no such attempt; {there}")
    if not attempts and not options.follow:
        (seen,) = queues.look([run])
        print(f"{run.id} has printed nothing: {seen.state.name} {seen.state.reason}".rstrip(), file=sys.stderr)
        return 0
    try:
        _print(run, options.attempt, options.lines, options.follow)
    except KeyboardInterrupt:
        return 130
    return 0


def _chosen(names: list[str], roots: list[str]) -> Run:
    if not names:
        return newest(roots)
    if len(names) > 1:
        raise UsageError(f"logs: one run at a time, not {len(names)}: {' '.join(names)}")
    (what,) = found(names, roots)
    if what.sweep is not None:
        raise UsageError(f"logs: {what.sweep} is a sweep of {len(what.runs)} runs; name one, as {what.sweep}-000")
    return what.runs[0]


def _print(run: Run, attempt: int | None, lines: int | None, following: bool) -> None:
    """Copy the logs of one attempt, and, if followed without a number, of those that come after it."""
    number = attempt or max(runs.attempts(run.folder), default=1)
    offsets = _begin(_folder(run, number), lines)
    while following:
        # The state first, the logs after it: what is finished prints no more.
        (seen,) = queues.look([run])
        numbers = runs.attempts(run.folder)
        newer = [each for each in numbers if each > number]
        offsets = _copy(_folder(run, number), offsets, whole_lines=not (seen.state.finished or newer))
        if newer and attempt is None:
            number, offsets = newer[0], (0, 0)
        elif seen.state.finished or newer:
            return
        else:
            time.sleep(INTERVAL)
    _copy(_folder(run, number), offsets, whole_lines=False)


def _folder(run: Run, number: int) -> Path:
    return run.folder / "attempts" / str(number)


def _begin(folder: Path, lines: int | None) -> tuple[int, ...]:
    if lines is None:
        return (0, 0)
    return tuple(follow.last_lines(folder / name, lines) for name in NAMES)


def _copy(folder: Path, offsets: tuple[int, ...], *, whole_lines: bool) -> tuple[int, ...]:
    streams = (sys.stdout.buffer, sys.stderr.buffer)
    return tuple(
        follow.copy(folder / name, offset, stream, whole_lines=whole_lines)
        for name, offset, stream in zip(NAMES, offsets, streams, strict=True)
    )
