"""Files of a snapshot as one archive, as they are sent to another host."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from launcher.code import code_store


def packed_files(files: Mapping[str, Path]) -> bytes:
    """The files as a compressed tar, under their names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", format=tarfile.GNU_FORMAT, dereference=True) as archive:
        for name, path in files.items():
            archive.add(path, name)
    return data.getvalue()


def unpacked_files(data: bytes, folder: Path) -> dict[str, Path]:
    """The files of such a tar, laid into a folder, by their names."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, "it has regular files alone"
            files[member.name] = folder / member.name
            code_store.make_parents(folder, member.name)
            files[member.name].write_bytes(content.read())
            files[member.name].chmod(member.mode & 0o700 | 0o600)
    return files
