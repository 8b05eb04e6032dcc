"""The folders that runs leave, and where they are.

    RUN_ROOT/<run id>/           the record of one run: there is no database
    RUN_ROOT/.unfinished/<id>    a marker from submission until someone sees the run finished, so that listing the
                                 unfinished ones opens no old folder
    RUN_ROOT/.sweeps/<id>.json   which runs a sweep has

The roots that were ever submitted to stand in $XDG_STATE_HOME/launcher/roots, one a line; what is known of runs on
other hosts is a root beside it (`remote.pointers`). Every file has one writer and is written aside and renamed; a file
that can't be read is taken for damaged, never for an empty answer.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher import admit
from launcher.errors import UsageError
from launcher.runs import ownership, run_ids, shapes
from launcher.runs.ownership import MINE, Owner
from recipes import records

SECRETS = ".secrets"
"""Of a run folder: a file for each secret that is kept for the run alone, and goes when it ends."""
UNFINISHED = ".unfinished"
SWEEPS = ".sweeps"
POINTER = "elsewhere.json"
"""In the folder that stands here for a run on another host: which host, and where (`remote.pointers`)."""
COPY = ".elsewhere.json"
"""The same in a folder that `fetch` brought: a copy, to be looked at and not acted on. No host can send that name."""
ATTEMPT_DIGITS = 6
"""Of the largest number of an attempt."""
ARMS = "arms"
"""The folder of a comparison that holds its arms."""
FAILED = "failed"
"""Of an arm that is not tried again: a file that says why."""


class Run(NamedTuple):
    """One run: its root and its name."""

    root: str
    id: str

    @property
    def folder(self) -> Path:
        return Path(self.root, self.id)


class Found(NamedTuple):
    """What a person's text named: one run, or the runs of a sweep."""

    sweep: str | None
    runs: tuple[Run, ...]


class Files(NamedTuple):
    """What a run's folder says of its state."""

    submission: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    stop: bool = False
    """STOP is there: someone asked for an end at the next step."""
    cancelled: bool = False
    """`cancel` was asked for."""
    saved: dict[str, Any] | None = None
    """The marker of the attempt in status.json: it stopped on request, and this checkpoint has its state."""
    failure: str = ""
    """Why the attempt in status.json failed, in the trainer's own words, if it came to say so."""
    damaged: tuple[str, ...] = ()
    """Files that are there and can't be read."""
    exists: bool = True
    """The folder itself is there."""
    owner: Owner = MINE
    """Of the folder. Of another user's run the files are shown, and nothing else is done with them."""
    copied: bool = False
    """The folder was brought from another host: what it says of processes and queues is not of this machine."""


# Roots


def known_roots() -> list[str]:
    """Run roots that were submitted to from this machine and are there now, in the order of their first use."""
    lines = []
    with contextlib.suppress(FileNotFoundError):
        # As file names are, which need not be text in any encoding.
        lines = os.fsdecode(_roots_file().read_bytes()).split("\n")
    return [each for each in dict.fromkeys([*lines, elsewhere()]) if each and os.path.isdir(each)]


def remember_root(root: Path) -> None:
    """Add a run root to the known ones."""
    text, file = str(root.absolute()), _roots_file()
    if text in known_roots():
        return
    make_private(file.parent)
    # One short append is whole even when two launchers do it at once.
    with open(file, "ab", opener=records.private) as stream:
        stream.write(os.fsencode(f"{text}\n"))


def roots(run_root: str | None) -> list[str]:
    """The root a person named, or all known ones. Raises `UsageError` for one that is no folder."""
    if run_root is None:
        return known_roots()
    root = os.path.abspath(os.path.expanduser(run_root))
    if not os.path.isdir(root):
        raise UsageError(f"run_root={run_root} is no folder")
    return [root]


def elsewhere() -> str:
    """The root whose folders stand for runs on other hosts."""
    return f"{state_folder()}/elsewhere"


def is_elsewhere(root: str) -> bool:
    """Whether the runs in that root are on other hosts, by whatever path it is named."""
    return root == elsewhere() or _is_same(root, elsewhere())


@functools.lru_cache(maxsize=256)
def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _roots_file() -> Path:
    return Path(state_folder(), "roots")


def state_folder() -> str:
    """Where the launcher keeps what belongs to the user and not to a run."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{state}/launcher"


# Making


def create(root: Path, run: str, *, shared: bool = False) -> Path:
    """A new run's folder with its marker, for its user alone, or `shared` for the group of the root to read.

    Raises `FileExistsError` where the name is taken, `UsageError` for a root that can't be shared."""
    folder = root / run
    make_root(root, shared=shared)
    make_folder(folder, shared=shared)
    attempts = folder / "attempts"
    try:
        make_folder(attempts, shared=shared)
        mark_unfinished(root, run)
    except BaseException:
        if attempts.is_dir():
            attempts.rmdir()
        folder.rmdir()
        raise
    return folder


def make_root(root: Path, *, shared: bool = False) -> None:
    """Make a run root where there is none, for its user alone, and give a root of the caller's to its group where it is
    to be `shared`: whoever is in the group may add runs, and nobody may rename those of others.

    Raises `UsageError` for another user's root that isn't set up so."""
    make_private(root)
    if not shared or ownership.is_shared(root):
        return
    if not ownership.is_mine(root, str(root)):
        raise UsageError(
            f"share=group: {root} is not set up for a group, and only its owner can do that: chmod 3770 {root}"
        )
    root.chmod(stat.S_IMODE(root.stat().st_mode) & 0o7775 | ownership.SHARED)


def make_private(folder: Path) -> None:
    """Make a folder and those that lead to it, where they aren't there, for their maker alone at every umask."""
    for each in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            if not each.exists():
                records.make_folder(each)


def make_folder(folder: Path, *, shared: bool) -> None:
    """Make a folder of a run, for its user alone or for the group of the root. Raises `FileExistsError`."""
    records.make_folder(folder)
    if shared:
        folder.chmod(0o2750)


def make_common(folder: Path) -> None:
    """Make a folder of the root that each of its users writes into, where it isn't there. Raises `UsageError` where it
    is another user's alone."""
    with contextlib.suppress(FileExistsError):
        records.make_folder(folder)
        if ownership.is_shared(folder.parent):
            folder.chmod(ownership.SHARED | 0o700)
    if not ownership.is_mine(folder, str(folder.parent)) and not ownership.is_shared(folder):
        raise UsageError(f"{folder} is another user's; name a run_root of your own, or share one with share=group")


def mark_unfinished(root: Path, run: str) -> None:
    make_common(root / UNFINISHED)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(root / UNFINISHED / run, flags, 0o600))


def clear_unfinished(root: Path, run: str) -> None:
    (root / UNFINISHED / run).unlink(missing_ok=True)


def forget_secrets(folder: Path) -> None:
    """Delete the secrets of a run that has ended without doing so itself; not those laid down to start it again."""
    import shutil  # which a listing does without

    secrets = folder / SECRETS
    try:
        if secrets.lstat().st_mtime_ns <= (folder / "status.json").stat().st_mtime_ns:
            shutil.rmtree(secrets, ignore_errors=True)
    except OSError:
        return


def write_sweep(root: Path, sweep: str, runs: Sequence[str], record: dict[str, Any]) -> None:
    """The record of a sweep: its runs, and whatever else is worth keeping."""
    path = root / SWEEPS / f"{sweep}.json"
    make_root(root)
    make_common(path.parent)
    write_json(path, {"schema": 1, "id": sweep, "runs": list(runs), **record})


def forget_sweep(root: Path, sweep: str) -> None:
    (root / SWEEPS / f"{sweep}.json").unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A record of a run: whoever may read its folder may read it."""
    write_text(path, json.dumps(value, indent=1) + "\n", records.record)


def write_text(path: Path, text: str, opener: Callable[[str, int], int] = records.private) -> None:
    """Aside first, then renamed, so that a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "w", encoding="utf-8", opener=opener) as stream:
            stream.write(text)
        os.replace(aside, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # which a write to a full disk doesn't name
        raise
    finally:
        aside.unlink(missing_ok=True)


# Reading


_BLOCK = 2**16


class Damaged(Exception):
    """The file is there and holds no JSON object."""


def read_json(path: str | Path, own_in: str | None = None) -> dict[str, Any] | None:
    """The object in the file; None where there is no file. Raises `Damaged` for anything else in it, and for a file of
    another user where `own_in` names the root in which it has to be the caller's."""
    try:
        # A listing reads tens of thousands: the plain calls take half the time of a file object.
        opened = admit.regular(os.fspath(path), os.O_RDONLY)
        try:
            found = os.fstat(opened)
            if own_in is not None and not (owner := ownership.of_file(found, own_in)).mine:
                raise Damaged(f"{path} {ownership.said(owner)}")
            if found.st_size > admit.LARGEST_RECORD:
                raise Damaged(f"{path} has {found.st_size} bytes, more than a record may")
            value = json.loads(_content(opened).decode())
        finally:
            os.close(opened)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise Damaged(f"{path} holds no JSON object")
    return value


def _content(opened: int) -> bytes:
    parts = [os.read(opened, _BLOCK)]
    while len(parts[-1]) == _BLOCK and len(parts) * _BLOCK <= admit.LARGEST_RECORD:
        parts.append(os.read(opened, _BLOCK))
    return b"".join(parts)


def read_if_whole(path: str | Path, own_in: str | None = None) -> dict[str, Any]:
    """The object in the file; empty where there is none, it can't be read, or isn't the caller's in the root that
    `own_in` names."""
    try:
        return read_json(path, own_in) or {}
    except Damaged:
        return {}


def read_known(path: str | Path, only: Collection[str] = ()) -> dict[str, Any]:
    """The same without what is of another type than it should be: whoever shows it needn't look again.

    `only` names the values that are wanted, where not all are: checking the rest of ten thousand files takes a second.
    """
    values = read_if_whole(path)
    if only:
        values = {name: value for name, value in values.items() if name in only}
    shape = shapes.OF_FILE.get(os.path.basename(path))
    return shapes.fitting(values, shape)[0] if values and shape else values


def load(folder: str) -> Files:
    """What the folder says now. Files are read in the order that makes a resubmission between them harmless.

    In a folder of the caller's, a record that another user wrote counts as damaged.
    """
    damaged = []
    root = os.path.dirname(folder)
    try:
        owner = ownership.of(folder, root)
    except (FileNotFoundError, NotADirectoryError):
        return Files(exists=False)
    except OSError as error:
        return Files(damaged=("its folder",), owner=Owner(False, "another user", f"{folder}: {error.strerror}"))
    own_in = root if owner.mine else None

    def read(name: str) -> dict[str, Any] | None:
        try:
            values = read_json(f"{folder}/{name}", own_in if name in ("submission.json", "status.json") else None)
        except Damaged:
            damaged.append(name)
            return None
        return values and shapes.fitting(values, shapes.OF_FILE[os.path.basename(name)])[0]

    # status.json first: it is the newer one only once the submission that it belongs to was written.
    status, submission = read("status.json"), read("submission.json")
    attempt = status.get("attempt") if status else None
    return Files(
        submission=submission,
        status=status,
        stop=os.path.exists(f"{folder}/STOP"),
        cancelled=os.path.exists(f"{folder}/cancelled"),
        saved=read(f"attempts/{attempt}/stopped.json") if attempt else None,
        failure=_failure(folder, status) if status else "",
        damaged=tuple(damaged),
        owner=owner,
        copied=os.path.exists(f"{folder}/{COPY}"),
    )


def _failure(folder: str, status: Mapping[str, Any]) -> str:
    if status.get("state") != "failed":
        return ""
    result = read_known(f"{folder}/result.json")
    its_own = result.get("status") == "failed" and result.get("attempts") == status.get("attempt")
    # torchrun kills the first rank, which writes the result, where another one has failed.
    first = {} if its_own else read_known(f"{folder}/attempts/{status.get('attempt')}/failed.json")
    return str((result if its_own else first).get("reason") or "")


def attempts(folder: Path) -> list[int]:
    """Numbers of the attempts that left a folder, oldest first; none where that can't be read."""
    try:
        names = os.listdir(folder / "attempts")
    except OSError:
        return []
    return sorted(int(each) for each in names if each.isascii() and each.isdigit() and len(each) <= ATTEMPT_DIGITS)


# Listing


def run_names(root: str) -> list[str]:
    """Every run in the root, in no order. Only names are read: this has to be quick over ten thousand of them."""
    try:
        return [each for each in os.listdir(root) if run_ids.is_id(each)]
    except OSError:  # one that is gone, or that may not be read, hides no other
        return []


def sweep_names(root: str) -> list[str]:
    with contextlib.suppress(OSError):
        names = (each[: -len(".json")] for each in os.listdir(f"{root}/{SWEEPS}") if each.endswith(".json"))
        return [each for each in names if run_ids.is_id(each)]
    return []


def unfinished(roots: Iterable[str]) -> list[Run]:
    """Runs with a marker, oldest first."""
    found = []
    for root in roots:
        with contextlib.suppress(OSError):
            found += [Run(root, each) for each in os.listdir(f"{root}/{UNFINISHED}") if run_ids.is_id(each)]
    return sorted(found, key=lambda run: run.id)


def newest_own(roots: Iterable[str]) -> Run | None:
    """The caller's newest run of all roots together."""
    found = ((each, root) for root in roots for each in run_names(root))
    for name, root in sorted(found, reverse=True):
        if ownership.is_mine(f"{root}/{name}", root):
            return Run(root, name)
    return None


def newest(roots: Iterable[str], count: int) -> list[Run]:
    """The newest runs of all roots together, newest first."""
    found: list[tuple[str, str]] = []
    for root in roots:
        found += [(each, root) for each in heapq.nlargest(count, run_names(root))]
    return [Run(root, run) for run, root in heapq.nlargest(count, found)]


def find(text: str, roots: Sequence[str]) -> Found:
    """The run or sweep that the text names in the roots. Raises `UsageError` where it names none, or several."""
    return find_all([text], roots)[0]


def find_all(texts: Sequence[str], roots: Sequence[str]) -> list[Found]:
    """What each text names, all of them before anything is done; the roots are read once, however many there are."""
    where: dict[str, list[str]] = {}
    sweeps: dict[str, list[str]] = {}
    for root in roots:
        for name in run_names(root):
            where.setdefault(name, []).append(root)
        for name in sweep_names(root):
            sweeps.setdefault(name, []).append(root)
    return [_find(each, roots, where, sweeps) for each in texts]


def _find(
    text: str, roots: Sequence[str], where: Mapping[str, Sequence[str]], sweeps: Mapping[str, Sequence[str]]
) -> Found:
    """Among runs and sweeps, each with the roots that have it."""
    if text in where or text in sweeps:  # a whole name, as a shell writes a thousand of them
        match = run_ids.Match(text, text in sweeps)
    else:
        match = run_ids.resolve(text, where, sweeps, lambda: _meant(text, roots, where))
    holders = (sweeps if match.is_sweep else where)[match.id]
    if len(holders) > 1:
        raise UsageError(f"{match.id} is in {len(holders)} run roots: add run_root={' or run_root='.join(holders)}")
    if match.is_sweep:
        return Found(match.id, tuple(sweep_runs(holders[0], match.id)))
    return Found(None, (Run(holders[0], match.id),))


def _meant(text: str, roots: Sequence[str], where: Mapping[str, Sequence[str]]) -> list[str]:
    """Runs that a text means which begins no id: unfinished cells of that number, as `watch` shows them, else runs
    that were given it as their name."""
    if not text:
        return []
    if text.isdecimal():
        return [each.id for each in unfinished(roots) if run_ids.sweep_of(each.id) and each.id.endswith(f"-{text}")]
    return [
        each
        for each in where
        if any(read_known(f"{root}/{each}/plan.json").get("name") == text for root in where[each])
    ]


def sweep_runs(root: str, sweep: str) -> list[Run]:
    """The runs of a sweep that still have a folder, in the order of its cells.

    A record that another user wrote says nothing: it could name any run.
    """
    recorded = read_if_whole(f"{root}/{SWEEPS}/{sweep}.json", own_in=root).get("runs")
    cells = [each for each in recorded if isinstance(each, str)] if isinstance(recorded, list) else run_names(root)
    names = [each for each in dict.fromkeys(cells) if run_ids.is_id(each) and run_ids.sweep_of(each) == sweep]
    if not isinstance(recorded, list):
        names.sort()
    return [Run(root, each) for each in names if os.path.isdir(f"{root}/{each}")]
