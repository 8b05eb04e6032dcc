"""A small text, so that no test reads the whole standard library."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import pytest

from amp_launcher.recipes.gpt import TOKEN_FILES


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one module's source, as files of token ids."""
    folder = tmp_path_factory.mktemp("ids")
    source = numpy.frombuffer(Path(argparse.__file__).read_bytes()[:40_000], numpy.uint8).astype(numpy.uint16)
    for name, part in zip(TOKEN_FILES, (source[:20_000], source[20_000:]), strict=True):
        part.tofile(folder / name)
    return folder
