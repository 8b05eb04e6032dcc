"""`logs`: what a run printed, as it printed it: its stdout to stdout, its stderr to stderr.

To a file or another program every byte of a run of this machine goes, and of one on another host the text alone, since
a pager may show it. A terminal gets colours and progress bars, and nothing else that it would act on: what a run prints
may come from data, from another user or from another host.
"""

from __future__ import annotations

import sys
import time

from launcher import admit
from launcher.commands.arguments import Parser, newest, positive, single
from launcher.errors import UsageError
from launcher.executors import backends, logs
from launcher.runs import run_roots, store
from launcher.runs.log_pieces import Piece
from launcher.runs.store import Run

INTERVAL = 0.3
"""Seconds between two looks at a run that is followed."""
_PLAIN = b"\x1b[0m"
"""Ends colours."""
PATIENCE = 3
"""Looks after which a run that is still queued is worth a line; one that starts at once is not."""


def main(arguments: list[str]) -> int:
    parser = Parser("logs", "[-f] [--attempt N] [--lines N] [RUN]", "Print what a run wrote; without RUN the newest.")
    parser.add_argument("-f", "--follow", action="store_true", help="continue until the run has ended")
    parser.add_argument("--attempt", type=positive, metavar="N", help="of this attempt; else of the newest")
    parser.add_argument("--lines", type=positive, metavar="N", help="only the last N lines of stdout and of stderr")
    options, names, roots = parser.read(arguments)
    run = single("logs", names, roots) if names else newest(roots)
    _check(run, options.attempt, options.follow)
    try:
        _print(run, options.attempt, options.lines, options.follow)
    except KeyboardInterrupt:
        return 130
    return 0


def _check(run: Run, attempt: int | None, following: bool) -> None:
    """Raises `UsageError` for an attempt that does not exist; notes a run that has printed nothing."""
    if attempt is None and following:
        return
    (seen,) = backends.states_of([run])
    attempts = store.attempts(run.folder)
    if seen.state.name == "unreachable":  # what its host has is not known; asking it for the log raises why
        return
    if attempt is not None and attempt not in attempts:
        there = f"it has {', '.join(map(str, attempts))}" if attempts else "it has not started yet"
        raise UsageError(f"--attempt {attempt}: {run.id} has no such attempt; {there}")
    if not attempts:
        print(f"{run.id} has printed nothing: {seen.state.name} {seen.state.reason}".rstrip(), file=sys.stderr)


def _print(run: Run, attempt: int | None, lines: int | None, following: bool) -> None:
    """Copy the logs of one attempt, and, if followed without a number, of those that come after it."""
    next_piece, is_remote = logs.source(run), run_roots.is_remote(run.root)
    place, message, repeated = None, "", 0
    while True:
        piece = next_piece(place, attempt=attempt, lines=lines, following=following)
        for text, stream in zip(piece.texts, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
            if stream.isatty():
                text = admit.clean_log(text) + _PLAIN * (b"\x1b[" in text)  # no line of ours has the run's last colour
            stream.write(admit.clean_log(text, colours=False) if is_remote and not stream.isatty() else text)
            stream.flush()
        # Only what was written counts as read.
        place = piece.place
        waiting = _waiting(run, piece)
        message, repeated = waiting, repeated + 1 if waiting == message else 0
        if waiting and repeated == PATIENCE:
            print(waiting, file=sys.stderr)
        if piece.ended:
            return
        if not piece.more:
            time.sleep(INTERVAL)


def _waiting(run: Run, piece: Piece) -> str:
    """What a run that is followed waits for; empty for one that has started."""
    if any(piece.texts) or piece.state is None or piece.state.name != "queued":
        return ""
    reason = f" ({piece.state.reason})" if piece.state.reason else ""
    return f"{run.id} is queued{reason}; its output follows once it starts"
