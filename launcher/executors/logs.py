"""What runs print, wherever they run."""

from __future__ import annotations

import functools
from collections.abc import Callable

from launcher.executors import backends
from launcher.runs import log_pieces, run_roots, store
from launcher.runs.log_pieces import NAMES, LogOffset, Piece
from launcher.runs.store import Run


def source(run: Run) -> Callable[..., Piece]:
    """What gives the next piece of a run's logs: see `log_pieces.piece`; `following` is of a run that is followed."""
    if not run_roots.is_remote(run.root):
        return functools.partial(_piece_here, run)
    from launcher.runs import remote_record
    from launcher.ssh import logs

    return functools.partial(logs.from_host, run, remote_record.required(run))


def text(run: Run, name: str) -> str | None:
    """What the newest attempt of a run printed to `stdout.log` or `stderr.log`; None where none has started."""
    if not store.attempts(run.folder):
        return None
    next_piece, place, parts = source(run), None, []
    while True:
        piece = next_piece(place, attempt=None, lines=None, following=False)
        parts.append(piece.texts[NAMES.index(name)])
        place = piece.place
        if not piece.more:
            return b"".join(parts).decode(errors="replace")


def _piece_here(run: Run, place: LogOffset | None, *, attempt: int | None, lines: int | None, following: bool) -> Piece:
    state = backends.states_of([run])[0].state if following else None
    return log_pieces.piece(run, place, state, attempt=attempt, lines=lines)
