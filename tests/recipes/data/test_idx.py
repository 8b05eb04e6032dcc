"""IDX files, whole and broken."""

from __future__ import annotations

import gzip

import numpy
import pytest

from amp_launcher.recipes.data import idx
from amp_launcher.typed import SettingsError
from tests.recipes.data.idx_files import encode

IMAGES = numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4)


def test_an_array_survives_the_format(tmp_path):
    (tmp_path / "a").write_bytes(encode(IMAGES))
    assert numpy.array_equal(idx.read(tmp_path / "a", 3), IMAGES)


def test_a_gzipped_file_reads_the_same_and_the_plain_one_is_preferred(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(encode(IMAGES)))
    assert idx.find(tmp_path, "a") == tmp_path / "a.gz"
    assert numpy.array_equal(idx.read(tmp_path / "a.gz", 3), IMAGES)
    (tmp_path / "a").touch()
    assert idx.find(tmp_path, "a") == tmp_path / "a"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an IDX file of 3 dimensions: it has 0 bytes, and its head alone would have 16"),
        (encode(IMAGES)[:10], "it has 10 bytes"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "makes 79228162458924105385300197391 bytes, and has 16"),
        (encode(IMAGES.reshape(2, 12)), "is not an IDX file of 3 dimensions: it begins with 00000802 where 00000803"),
        (b"\0\0\x0d\x03" + encode(IMAGES)[4:], "is not an IDX file"),
        (encode(IMAGES)[:-1], "2 x 3 x 4, which makes 40 bytes, and has 39"),
        (encode(IMAGES) + b"\0", "which makes 40 bytes, and has 41"),
    ],
)
def test_anything_but_a_complete_idx_file_is_refused(tmp_path, content, complaint):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(SettingsError, match=complaint):
        idx.read(tmp_path / "a", 3)


@pytest.mark.parametrize("content", [gzip.compress(encode(IMAGES))[:-9], b"no gzip"])
def test_a_broken_gzip_is_refused(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(SettingsError, match="can't be read"):
        idx.read(tmp_path / "a.gz", 3)
