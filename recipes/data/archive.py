"""Known files out of a downloaded tar.gz, which is not trusted."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from . import DownloadError
from .download import CHUNK

SLACK = 2**20
"""Bytes that an archive may have in addition to its known files, for headers and small files."""


def unpack(archive: Path, folder: Path, sizes: Mapping[str, int]) -> None:
    """Unpack the files of a tar.gz that `sizes` has, by their paths in it, into `folder` under their last names.

    Nothing else is written. Raises `SettingsError` for an archive that lacks one of them or has it in another size than
    `sizes` says, or that has links, paths that lead outside, or more bytes than its known files.
    """
    missing = dict(sizes)
    try:
        folder.mkdir(exist_ok=True)
        with gzip.open(archive) as content, tarfile.open(fileobj=_Bounded(content, sizes), mode="r|") as members:
            for member in members:
                _check_member(archive, member)
                size = missing.pop(member.name, None)
                if size is None:
                    continue
                source = members.extractfile(member) if member.isreg() else None
                if source is None or member.size != size:
                    raise DownloadError(f"{archive}: {member.name} is not a file of {size:,} bytes")
                _unpack_one(source, folder / Path(member.name).name)
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise DownloadError(f"{archive} can't be unpacked: {error}") from None
    except OSError as error:
        raise DownloadError(f"{archive} can't be unpacked into {folder}: {error.strerror or error}") from None
    if missing:
        raise DownloadError(f"{archive} lacks {', '.join(missing)}")


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    if not (member.isreg() or member.isdir()):
        raise DownloadError(f"{archive}: {member.name} is a link or a device; nothing more is unpacked")
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise DownloadError(f"{archive}: {member.name} leads outside of the folder; nothing more is unpacked")


def _unpack_one(source: IO[bytes], target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    with part.open("xb") as written:
        while chunk := source.read(CHUNK):
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    os.replace(part, target)


class _Bounded:
    """A stream that raises an error where it unpacks to more bytes than its known files have."""

    def __init__(self, content: IO[bytes], sizes: Mapping[str, int]) -> None:
        self._content = content
        self._left = sum(sizes.values()) + SLACK

    def read(self, count: int) -> bytes:
        chunk = self._content.read(min(count, self._left + 1))
        self._left -= len(chunk)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to more bytes than its files are known to have")
        return chunk
