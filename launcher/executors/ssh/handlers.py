"""The host's answers to requests, computed by the functions that the launcher uses on its own machine."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import admit, safe_files
from launcher.admit import Refused
from launcher.code import uv_environment
from launcher.code.code_archive import unpacked_files
from launcher.errors import UsageError
from launcher.executors import backends, logs, stopping, trash
from launcher.executors.remove import remove as remove_runs
from launcher.executors.resume import resume_here
from launcher.executors.verify import verify_here
from launcher.runs import log_pieces, run_ids, store
from launcher.runs.remote_record import OURS
from launcher.runs.store import Run
from launcher.ssh import protocol, run_answer
from launcher.ssh.methods import MOST_FILES


def hello() -> dict[str, Any]:
    """The host, its system and its Python."""
    return {"host": platform.node(), "system": platform.system(), "python": platform.python_version()}


def probe(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of this host, and the state of the files and images that a request names."""
    from amp_launcher.typed import build, plain
    from launcher.probe.host import facts_of
    from launcher.probe.questions import Questions

    answer: dict[str, Any] = plain(facts_of(build(Questions, asked)))
    return answer


def make_environment(
    data: bytes, place: str, name: str, member: str, lock: str, shared: bool
) -> Generator[str, None, None]:
    """Make an environment of uv; what it does, line by line."""
    store.make_root(Path(place).parent, shared=shared)
    with tempfile.TemporaryDirectory() as folder:
        files = unpacked_files(data, Path(folder))
        yield from uv_environment.make(Path(place), name, files, member, lock)


def examine(run_root: str) -> dict[str, Any]:
    """The state of this machine, for `doctor`."""
    from amp_launcher.typed import plain
    from launcher.probe import health

    return dict(plain(health.read(run_root)))


def look(runs: Sequence[Mapping[str, Any]], follow: bool) -> Generator[dict[str, Any], None, None]:
    """The state of each run, with its small files that changed and, with `follow`, its new metrics. A run that cannot
    be read is an error of its own."""
    seen = backends.states_of(_runs(runs))
    backends.settle(seen)
    for row, question in zip(seen, runs, strict=True):
        try:
            yield run_answer.status(row, question, follow)
        except OSError as error:
            yield {"error": f"{error.strerror or error}: {error.filename}"}
        except Refused as error:
            yield {"error": f"its files there are not valid: {error}"}


def log(
    root: str, id: str, place: Mapping[str, Any] | None, attempt: int | None, lines: int | None, following: bool
) -> Generator[Any, None, None]:
    """A piece of a run's logs: its place, then the bytes of stdout and of stderr."""
    run = Run(root, id)
    if not run.folder.is_dir():
        raise UsageError(f"there is no run {id} in {root} on {platform.node()}")
    offset = log_pieces.LogOffset(**place) if place else None
    piece = logs.source(run)(offset, attempt=attempt, lines=lines, following=following)
    yield {
        "place": piece.place._asdict(),
        "sizes": [len(text) for text in piece.texts],
        "more": piece.more,
        "ended": piece.ended,
        "state": run_answer.plain(piece.state) if piece.state else None,
    }
    yield from (text for text in piece.texts if text)


def request_stop(runs: Sequence[Mapping[str, str]]) -> None:
    """Ask runs to save and stop at their next step."""
    for run in _runs(runs):
        stopping.request_stop(run.folder)


def cancel(runs: Sequence[Mapping[str, str]], now: bool, stop_grace: float, term_grace: float) -> list[str]:
    """End runs. Returns, for each, why it could not be ended; empty if it was ended."""
    there = [run for run in _runs(runs) if run.folder.is_dir()]
    ended = stopping.cancel(there, now=now, stop_grace=stop_grace, term_grace=term_grace, say=_say)
    why = {row.seen.run: row.why_not for row in ended}
    return [why.get(run, "") for run in _runs(runs)]


def resume(
    runs: Sequence[Mapping[str, str]], sweep: str | None, assignments: Mapping[str, str], secrets: Mapping[str, str]
) -> list[str]:
    """Resume runs. Returns the names of those that were started."""
    contents = {name: base64.b64decode(text) for name, text in secrets.items()}
    folders, _ = resume_here(_runs(runs), dict(assignments), contents, is_sweep=sweep is not None)
    return [folder.name for folder in folders]


def verify(
    run: Mapping[str, str],
    name: str,
    token: str,
    step: int | None,
    assignments: Mapping[str, str],
    secrets: Mapping[str, str],
) -> list[Any]:
    """Replay a run, as the run `name`. Returns the steps of its start and end, and whether each is recorded."""
    if not run_ids.is_id(name):
        raise UsageError(f"{name} is not the name of a run")
    contents = {key: base64.b64decode(text) for key, text in secrets.items()}
    (original,) = _runs([run])
    replayed = verify_here(original, step, dict(assignments), contents, name=name, token=token)
    return [replayed.first, replayed.step, replayed.recorded]


def remove(runs: Sequence[Mapping[str, str]], force: bool, now: bool) -> None:
    """Remove the folders of runs, and the files of sweeps that have none left. One that is gone is no error."""
    wanted = _runs(runs)
    there = [run for run in wanted if run.folder.is_dir()]
    remove_runs(there, force, now=now)
    for run in sorted({*wanted}.difference(there)):  # it may have been moved
        _say(f"there is no run {run.id} in {run.root} on {platform.node()}; its record goes")
    for root in () if now else sorted({run.root for run in there}):
        _say(trash.told(root, there=True))


def sizes(runs: Sequence[Mapping[str, str]]) -> list[int]:
    """Bytes of each run, 0 for one that is gone."""
    return [trash.size(run) for run in _runs(runs)]


def contents(root: str, id: str) -> list[list[Any]]:
    """Every file of a run that may be fetched: its name, size and time of change. Left out are secrets, names that the
    other side would refuse, and files beyond its limit."""
    listed: list[list[Any]] = []
    left: list[str] = []
    top = Path(root, id)
    if not top.is_dir():
        raise UsageError(f"there is no run {id} in {root} on {platform.node()}")
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            inside, stamp = str(path.relative_to(top)), path.stat()
            if not admit.is_path(inside) or inside.casefold() in OURS or len(listed) == MOST_FILES:
                left.append(inside)
            else:
                listed.append([inside, stamp.st_size, max(0, stamp.st_mtime_ns)])
    if left:
        _say(f"{len(left)} files stay there, as {left[0]!a}: no such name is fetched, nor more than {MOST_FILES} files")
    return listed


def files(root: str, id: str, wanted: Sequence[Sequence[Any]]) -> Generator[Any, None, None]:
    """Files of a run, one after another: what it is, its bytes, the SHA-256 of all of it.

    Each is wanted from an offset on if it still has the size and time of change that go with it, else from its start.
    """
    for name, offset, size, mtime in wanted:
        try:
            opened = safe_files.open_in(Path(root, id), name)
        except FileNotFoundError:
            yield {"name": name, "gone": True}
            continue
        with open(opened, "rb") as stream:
            stamp = os.fstat(stream.fileno())
            digest, left = hashlib.sha256(), stamp.st_size
            if (size, mtime) != (stamp.st_size, stamp.st_mtime_ns):
                offset = 0
            yield {"name": name, "size": stamp.st_size, "mtime": stamp.st_mtime_ns, "offset": offset}
            while left and (part := stream.read(min(protocol.CHUNK, left))):
                digest.update(part)
                done = stamp.st_size - left
                left -= len(part)
                if done + len(part) > offset:
                    yield part[max(0, offset - done) :]
            yield {"name": name, "sha256": digest.hexdigest(), "short": left}


def _runs(runs: Sequence[Mapping[str, str]]) -> list[Run]:
    return [Run(run["root"], run["id"]) for run in runs]


def _say(text: str) -> None:
    print(text, file=sys.stderr)
