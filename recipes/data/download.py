"""Download of published files: verified, by one process of a folder at a time.

Bytes go into `.NAME.part` beside the file. Only a file of the published size and digest gets its name. Allowed are
https, and http to this machine itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import DownloadError

CHUNK = 2**20
TIMEOUT = 30
"""Seconds without a byte after which a connection counts as lost."""
ATTEMPTS = 3
"""Connections after which a server is given up."""
REPORT_EVERY = 5.0
"""Seconds between lines of progress."""
LOCK = ".download.lock"
"""It stays: where it is removed, two processes may have locks on two files of that name."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A file as its publisher describes it."""

    name: str
    size: int
    """Bytes."""
    md5: str
    urls: tuple[str, ...]
    """Servers, tried in this order."""


class _Lost(Exception):
    """A connection failed or ended too early; another attempt may succeed."""


class _Refused(Exception):
    """A server doesn't have the published file, or answers in a way that is not accepted."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, created if missing, against other processes that download into it. Waits for them.

    Raises `SettingsError` where the folder can't be written.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise DownloadError(
            f"data.download=true: data.dir={folder} can't be written: {error.strerror}; name another folder, or "
            "have the files put there"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _report(f"waiting for another process that downloads into {path.parent}")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def fetch(folder: Path, file: Published) -> Path:
    """The file in the folder, downloaded if it is missing. Call it within `locked`.

    Raises `SettingsError` where no server has the file, saying where to get it, and for another file of that name.
    """
    target = folder / file.name
    if target.is_file():
        with target.open("rb") as existing:
            if os.fstat(existing.fileno()).st_size != file.size or _md5(existing) != file.md5:
                raise DownloadError(f"{target} is not the published file: its size or MD5 differs; remove it")
        return target
    part = folder / f".{file.name}.part"
    reasons = []
    try:
        part.unlink(missing_ok=True)  # of a killed download
        with part.open("xb") as written:
            for url in file.urls:
                try:
                    _from_server(url, file, written)
                except _Refused as error:
                    reasons.append(f"{url}: {error}")
                    continue
                written.flush()
                os.fsync(written.fileno())
                os.replace(part, target)
                return target
    except OSError as error:
        raise DownloadError(f"{part} can't be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    raise DownloadError(
        f"{file.name} can't be downloaded: {'; '.join(reasons)}. Download {file.urls[0]} (MD5 {file.md5}) where the "
        f"network allows, and put it into {folder}"
    )


def _from_server(url: str, file: Published, written: IO[bytes]) -> None:
    """Write the file of one server. Raises `_Refused`, and `OSError` where writing fails."""
    _check(url)
    for attempt in range(1, ATTEMPTS + 1):
        written.seek(0)
        written.truncate()
        try:
            with _open(url) as answer:
                _receive(answer, file, written)
            return
        except _Lost as error:
            if attempt == ATTEMPTS:
                raise _Refused(str(error)) from None
            time.sleep(attempt)


def _open(url: str) -> Any:
    headers = {"Accept-Encoding": "identity", "User-Agent": "amp-launcher"}
    try:
        return _OPENER.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        lost = error.code in (408, 429) or error.code >= 500
        raise (_Lost if lost else _Refused)(f"HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Lost(str(getattr(error, "reason", error)) or type(error).__name__) from None


def _receive(answer: Any, file: Published, written: IO[bytes]) -> None:
    """Write the bytes of one connection. Raises `_Lost`, `_Refused`, and `OSError` where writing fails."""
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) != file.size:
        raise _Refused(f"its file has {int(length):,} bytes, and the published one {file.size:,}")
    begun = reported = time.monotonic()
    md5 = hashlib.md5(usedforsecurity=False)
    count = 0
    while True:
        try:
            chunk = answer.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Lost(str(error) or type(error).__name__) from None
        if not chunk:
            break
        count += len(chunk)
        if count > file.size:
            raise _Refused(f"it sends more than the {file.size:,} bytes of the published file")
        written.write(chunk)
        md5.update(chunk)
        now = time.monotonic()
        if now - reported >= REPORT_EVERY or count == file.size:
            reported = now
            rate = count / max(now - begun, 1e-3)
            _report(f"{file.name}: {count / 1e6:,.1f} of {file.size / 1e6:,.1f} MB, {rate / 1e6:,.1f} MB/s")
    if count < file.size:
        raise _Lost(f"the connection ended after {count:,} of {file.size:,} bytes")
    if md5.hexdigest() != file.md5:
        raise _Refused("another file than the published one: its MD5 differs")


def _md5(file: IO[bytes]) -> str:
    """The MD5 that publishers give. It detects damage, and no second-preimage attack on it is known."""
    md5 = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(CHUNK):
        md5.update(chunk)
    return md5.hexdigest()


def _check(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise _Refused(f"{url} is not https")


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check(newurl)
        if req.type == "https" and not newurl.startswith("https:"):
            raise _Refused(f"it leads to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
