"""Text as token ids: the bytes of Python's own standard library, or files of ids."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError

from ..gpt import TOKEN_FILES, GptSettings, check_length, check_size
from . import DataError, digest

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")
"""Folders of the standard library whose files are not read: they differ from one machine to the next."""
GENERATED = "_sysconfigdata"
"""Files of that name describe how this Python was built."""
HELD_OUT_SHARE = 20
"""One file in so many is held out."""
CHUNK = 2**24
"""Ids that are checked at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Token ids one after another, of shape [count]; a sample is `context` of them and the one that comes next."""

    ids: numpy.ndarray
    context: int

    def __len__(self) -> int:
        """Samples, which share no token that is predicted."""
        return max(0, (len(self.ids) - 1) // self.context)

    def samples(self, indices: numpy.ndarray) -> numpy.ndarray:
        """Int64 of shape [*indices.shape, context + 1]."""
        positions = numpy.asarray(indices)[..., None] * self.context + numpy.arange(self.context + 1)
        return self.ids[positions].astype(numpy.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Text that is trained on, and text that is not."""

    name: str
    train: Tokens
    held_out: Tokens
    digest: str
    """SHA-256 of all ids, as `sha256:...`."""
    bytes_per_token: float | None


def load(data: Data, settings: GptSettings) -> Text:
    """The text that `data` names. Raises `SettingsError` for missing or broken files, and for too little text."""
    return _from_files(data, settings) if data.name == "tokens" else _standard_library(settings)


def _standard_library(settings: GptSettings) -> Text:
    """The bytes of its files, in the order of their paths. Which are held out depends on each one's path alone."""
    parts: tuple[bytearray, bytearray] = bytearray(), bytearray()
    for name in sorted(_python_files(LIBRARY)):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        try:
            parts[number % HELD_OUT_SHARE == 0].extend((LIBRARY / name).read_bytes())
        except OSError as error:
            raise SettingsError(f"data=stdlib: {LIBRARY / name} can't be read: {error.strerror}", "data.name") from None
    if not all(parts):
        raise SettingsError(f"data=stdlib: {LIBRARY} has too few Python files", "data.name")
    for part, whose in zip(parts, ("to train on", "held out"), strict=True):
        check_length(settings, f"data=stdlib ({whose})", len(part))
    train, held_out = (
        Tokens(ids=numpy.frombuffer(bytes(part), numpy.uint8), context=settings.context) for part in parts
    )
    contents = (content for part in parts for content in (len(part).to_bytes(8, "little"), part))
    return Text(name="stdlib", train=train, held_out=held_out, digest=digest(*contents), bytes_per_token=1.0)


def _python_files(folder: Path) -> Iterator[str]:
    """Paths below `folder`, with slashes."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in files:
            if name.endswith(".py") and not name.startswith(GENERATED):
                yield Path(place, name).relative_to(folder).as_posix()


def _from_files(data: Data, settings: GptSettings) -> Text:
    """Memory-mapped: the files may be larger than memory. Each is read through once, to be checked."""
    if data.dir is None:
        raise DataError(f"data=tokens needs data.dir=FOLDER, which holds {' and '.join(TOKEN_FILES)}")
    sha256 = hashlib.sha256()
    train, held_out = (
        Tokens(ids=_mapped(Path(data.dir, name), settings, sha256), context=settings.context) for name in TOKEN_FILES
    )
    return Text(
        name="tokens",
        train=train,
        held_out=held_out,
        digest=f"sha256:{sha256.hexdigest()}",
        bytes_per_token=settings.bytes_per_token,
    )


def _mapped(path: Path, settings: GptSettings, sha256: hashlib._Hash) -> numpy.ndarray:
    """A file's ids, checked, and added to the digest."""
    dtype = numpy.dtype(settings.ids).newbyteorder("<")
    try:
        size = path.stat().st_size
        check_size(settings, str(path), size)
        ids = numpy.memmap(path, dtype, "r")
    except OSError as error:
        raise DataError(f"data=tokens: {path} can't be read: {error.strerror}") from None
    sha256.update(size.to_bytes(8, "little"))
    every_second = False
    for first in range(0, len(ids), CHUNK):
        chunk = ids[first : first + CHUNK]
        every_second = every_second or bool(chunk[1::2].any())
        if chunk.max() >= settings.vocab_size:
            position = first + int((chunk >= settings.vocab_size).argmax())
            raise SettingsError(
                f"{path}: id {ids[position]} at position {position:,} is beyond "
                f"train.vocab_size={settings.vocab_size}; say the vocabulary's size, or is train.ids={settings.ids} "
                "wrong?",
                "train.vocab_size",
            )
        sha256.update(chunk.data)
    if not every_second and settings.ids == "uint16":
        raise SettingsError(
            f"{path}: every second id is 0, as where ids of 4 bytes are read as ids of 2; say train.ids=uint32",
            "train.ids",
        )
    return ids
