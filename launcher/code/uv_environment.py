"""Environments that uv makes of projects, on the host where jobs use them.

    RUN_ROOT/.environments/<name>       the environment; `.made` in it says that uv finished
    RUN_ROOT/.environments/<name>.log   what uv said
    RUN_ROOT/.environments/<name>.lock  held by whoever makes it, and by its uv

A job finds its run root wherever it runs, and so its environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from amp_launcher import records
from launcher.code import code_store
from launcher.config.paths import expanded
from launcher.errors import Unavailable, UsageError, of_system
from launcher.runs import run_roots

FOLDER = ".environments"
_MADE = ".made"
_USUAL = ("~/.local/bin/uv", "~/.cargo/bin/uv")
"""Where uv's own installers put it, and logins without a terminal do not look."""
_PROGRESS = re.compile(r" *(Downloading|Building|Prepared|Installed) ")
_OUTSIDE = re.compile(r"error sending request|dns error|timed out|Connection|HTTP status|No space left|Network conn")
"""What a lock file is not to blame for."""
_OTHERS = (
    *("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "UV_PROJECT", "UV_FROZEN", "UV_LOCKED", "UV_NO_SYNC"),
    *("UV_NO_DEV", "UV_NO_GROUP", "UV_NO_DEFAULT_GROUPS", "UV_NO_INSTALL_LOCAL", "UV_NO_INSTALL_WORKSPACE"),
)
"""Variables of a shell that would have uv do something else."""
_NEW = 3600.0
"""Seconds for which an environment is kept that no run names."""
_LONGEST = 400
"""Characters of uv's complaint that are repeated."""


def name_of(digest: str) -> str:
    """The name here of the environment of a project with that digest: machines that share a home may differ."""
    host = os.uname()
    return f"{digest[:24]}-{host.sysname}-{host.machine}".lower()


def place(run_root: str | Path, shared: int | None) -> Path:
    """The folder of a user's environments in a run root: in one that a group shares, of the user with that uid."""
    return Path(run_root, FOLDER if shared is None else f"{FOLDER}-{shared}")


def python_of(place: Path, name: str) -> Path:
    return place / name / "bin" / "python"


def is_ready(place: Path, name: str) -> bool:
    """Whether it was made to its end, and the Python that it was made with is still there."""
    return (place / name / _MADE).is_file() and python_of(place, name).exists()


def uv() -> list[str]:
    """The command that is uv on this host; empty where there is none."""
    usual = map(str, map(expanded, _USUAL))
    found = shutil.which("uv") or next((path for path in usual if os.access(path, os.X_OK)), "")
    if found:
        return [found]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []


def lacking() -> str:
    """What to do on a host without uv; empty with one."""
    user = " --user" if sys.prefix == sys.base_prefix else ""
    return (
        ""
        if uv()
        else (
            f"python=uv: there is no uv on {os.uname().nodename}, on its PATH, in ~/.local/bin or as a module of "
            f"{sys.executable}; this installs it there: {sys.executable} -m pip install{user} uv"
        )
    )


def make(place: Path, name: str, files: Mapping[str, Path], member: str, lock: str) -> Iterator[str]:
    """Make an environment, once for all who ask at the same time. Yields lines for people, and an empty one every
    second.

    `files` and `member` are those of the `UvProject`; `lock` is its lock file, for messages. Raises `UsageError` for a
    lock file that can't be used, and `Unavailable` for a host without uv, network or room.
    """
    code_store.make(place)
    try:
        with open(place / f"{name}.lock", "ab", opener=records.private) as held:
            yield from _wait(held.fileno())
            if not is_ready(place, name):
                yield from _made(place, name, files, member, lock, held.fileno())
    except OSError as error:
        raise Unavailable(f"python=uv: {of_system(error, place)}") from None


def unused(place: Path, needed: Callable[[str], bool]) -> Iterator[str]:
    """The names of the environments that nobody needs, each while it is locked, so that it can be deleted. One that
    is being made, or was made within the hour, is needed by a run that has no plan yet."""
    for made in place.glob(f"*/{_MADE}"):
        name = made.parent.name
        lock = run_roots.locked(place / f"{name}.lock", wait=False)
        with contextlib.suppress(BlockingIOError, FileNotFoundError), lock:
            if time.time() - made.stat().st_mtime > _NEW and not needed(name):
                yield name


def _wait(handle: int) -> Iterator[str]:
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield "" if told else "another launcher makes this environment; waiting for it"
            told = True
            time.sleep(0.5)
        else:
            return


def _made(place: Path, name: str, files: Mapping[str, Path], member: str, lock: str, handle: int) -> Iterator[str]:
    command, target, copy, log = uv(), place / name, place / f".{name}.project", place / f"{name}.log"
    if not command:
        raise UsageError(lacking())
    yield f"making the environment of {lock} in {target}"
    began = time.monotonic()
    for left in (target, copy):  # by one who was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        records.make_folder(copy)
        for file, path in files.items():
            code_store.make_parents(copy, file)
            shutil.copy(path, copy / file)
            (copy / file).chmod(0o700 if os.access(path, os.X_OK) else 0o600)
        project = ("--project", str(copy / member))
        yield from _run([*command, "lock", "--check", *project], target, log, lock, handle)
        sync = ("sync", "--frozen", "--no-install-project", "--no-editable")
        yield from _run([*command, *sync, *project], target, log, lock, handle)
        (target / _MADE).touch()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    yield f"environment made in {time.monotonic() - began:.0f} s"


def _run(argv: Sequence[str], target: Path, log: Path, lock: str, handle: int) -> Iterator[str]:
    """Run uv with its words in the log. It holds the lock too: should this process be killed, nobody begins before uv
    has ended."""
    environ = {key: value for key, value in os.environ.items() if key not in _OTHERS}
    with open(log, "wb", opener=records.private) as out:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={**environ, "UV_PROJECT_ENVIRONMENT": str(target), "NO_COLOR": "1"},
            pass_fds=(handle,),
        )
    shown = 0
    try:
        code = None
        while code is None:
            try:
                code = started.wait(1.0)
            except subprocess.TimeoutExpired:
                yield ""
            *lines, _ = log.read_text(encoding="utf-8", errors="replace").split("\n")
            yield from (line.strip() for line in lines[shown:] if _PROGRESS.match(line))
            shown = len(lines)
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait()
    if code:
        raise _refusal(log, lock, code)


def _refusal(log: Path, lock: str, code: int) -> UsageError | Unavailable:
    """uv's complaint as one sentence."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if "needs to be updated" in text:
        return UsageError(
            f"python=uv: {lock} is out of date with its pyproject.toml: run `uv lock` in {os.path.dirname(lock)} "
            "(command line)"
        )
    complaint = re.search(r"(?:error: |× )(.*?)(?=\n\s*hint: |\Z)", text, re.DOTALL)
    words = re.sub(r"[\s╰│├─▶]+", " ", complaint[1] if complaint else text[-_LONGEST:]).strip()
    words = words.replace(" cause: ", ": ")
    if len(words) > _LONGEST:  # a build's own complaint comes last
        words = f"{words[: _LONGEST // 2]} … {words[-_LONGEST // 2 :]}"
    why = words or f"exit code {code}"
    said = f"python=uv: uv can't make the environment of {lock}: {why} (all of it in {log})"
    return Unavailable(said) if _OUTSIDE.search(text) else UsageError(said)
