"""Files inside a folder, whatever links and pipes another user put there."""

from __future__ import annotations

import os

import pytest

from launcher import safe_files
from launcher.admit import Refused


def test_a_file_is_written_and_opened_inside_its_folder(tmp_path):
    safe_files.write_in(tmp_path, "a/b/file", b"first")
    safe_files.write_in(tmp_path, "a/b/file", b"second", modified=5_000_000_000)
    assert (tmp_path / "a/b/file").read_bytes() == b"second"
    assert (tmp_path / "a/b/file").stat().st_mtime_ns == 5_000_000_000
    assert (tmp_path / "a/b/file").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "a/b") == ["file"]
    with open(safe_files.open_in(tmp_path, "a/b/file"), "rb") as stream:
        assert stream.read() == b"second"


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "", "a//b", "."])
def test_no_file_is_opened_outside(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(Refused):
        safe_files.write_in(inside, name, b"x")
    with pytest.raises(Refused):
        safe_files.open_in(inside, name, os.O_WRONLY | os.O_CREAT, make=True)
    assert os.listdir(tmp_path) == ["inside"]


def test_no_link_below_the_folder_is_followed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "file").write_bytes(b"precious")
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "file")
    for opening in (
        lambda: safe_files.open_in(inside, "folder/file"),
        lambda: safe_files.open_in(inside, "file", os.O_WRONLY | os.O_TRUNC),
        lambda: safe_files.write_in(inside, "folder/file", b"x"),
    ):
        with pytest.raises(OSError):
            opening()
    safe_files.write_in(inside, "file", b"x")
    assert (outside / "file").read_bytes() == b"precious"
    assert not (inside / "file").is_symlink() and (inside / "file").read_bytes() == b"x"


def test_the_folder_itself_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    safe_files.write_in(tmp_path / "link", "file", b"x")
    assert (tmp_path / "real/file").read_bytes() == b"x"


def test_what_is_no_regular_file_is_not_opened_and_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="not a regular file"):
            safe_files.open_in(tmp_path, name)
