"""The logs of a remote run, read piece by piece; after a lost connection reading continues where it was."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from launcher import admit
from launcher.admit import Refused
from launcher.runs.decode import admitted
from launcher.runs.log_pieces import NAMES, PIECE, LogOffset, Piece
from launcher.runs.remote_record import Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh.failures import Retries, Unreachable
from launcher.ssh.host import connect


class _Head(NamedTuple):
    place: LogOffset
    sizes: Annotated[tuple[int, ...], admit.list_of(functools.partial(admit.whole, most=PIECE), len(NAMES), len(NAMES))]
    """Bytes of stdout and stderr that follow."""
    more: bool
    ended: bool
    state: State | None = None


def from_host(
    run: Run, pointer: Pointer, place: LogOffset | None, *, attempt: int | None, lines: int | None, following: bool
) -> Piece:
    """The next piece of a run's logs from its host; see `log_pieces.piece`. Raises `Unreachable`."""
    retries = Retries()
    while True:
        try:
            return _ask(run, pointer, place, attempt=attempt, lines=lines, following=following)
        except Unreachable as error:
            if not following or place is None:
                raise
            retries.wait(error, lambda text: print(text, file=sys.stderr))


def _ask(run: Run, pointer: Pointer, place: LogOffset | None, **options: Any) -> Piece:
    host = connect(pointer.address)
    answers = host.stream("log", root=pointer.root, id=run.id, place=place._asdict() if place else None, **options)
    with host.admitting(), contextlib.closing(answers):
        piece, sizes = _head(next(answers, None), place, options["following"])
        text = bytearray()
        for part in answers:
            if not isinstance(part, bytes) or len(text) + len(part) > sum(sizes):
                raise Refused("it sends more of a log than it announced")
            text += part
        if len(text) < sum(sizes):
            raise Refused("it sends less of a log than it announced")
    return piece._replace(texts=(bytes(text[: sizes[0]]), bytes(text[sizes[0] :])))


def _head(value: Any, before: LogOffset | None, following: bool) -> tuple[Piece, Sequence[int]]:
    """The description of a piece of a log, and the bytes of stdout and stderr that follow. Raises `Refused`."""
    place, sizes, more, ended, state = admitted(_Head, value, "an answer about a log")
    if before is not None and place.attempt <= before.attempt:
        after = LogOffset(before.attempt, *(at + size for at, size in zip(before[1:], sizes, strict=True)))
        if place != after or (more and not any(sizes)):
            raise Refused("it does not continue where the log was left")
    if not (following or ended or more):
        raise Refused("its log neither ends nor continues")
    return Piece(place, (b"", b""), more=more, ended=ended, state=state), sizes
