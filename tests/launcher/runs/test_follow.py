import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs import follow


def test_a_line_comes_once_and_only_when_it_is_complete(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = follow.Lines(path)
    assert list(lines.read()[1]) == []
    path.write_bytes(b"one\ntw")
    assert list(lines.read()[1]) == [b"one"]
    assert list(lines.read()[1]) == []
    with open(path, "ab") as stream:
        stream.write(b"o\nthree\n")
    afresh, new = lines.read()
    assert (afresh, list(new)) == (False, [b"two", b"three"])


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_no_line_is_lost_doubled_or_split_however_the_file_grows(tmp_path_factory, parts, chunk):
    path = tmp_path_factory.mktemp("grow") / "metrics.jsonl"
    before, follow.CHUNK = follow.CHUNK, chunk
    try:
        lines, found = follow.Lines(path), []
        for part in parts:
            with open(path, "ab") as stream:
                stream.write(part)
            afresh, new = lines.read()
            assert not afresh
            found += new
        assert found == b"".join(parts).split(b"\n")[:-1]
    finally:
        follow.CHUNK = before


@pytest.mark.parametrize("grown", [b"", b"4 again\n", b"4 again\n5 again\n6 again and longer than before\n"])
def test_a_file_that_was_cut_back_is_taken_in_anew(tmp_path, grown):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"1\n2\n3\n4\n5\n")
    lines = follow.Lines(path)
    assert len(list(lines.read()[1])) == 5
    os.truncate(path, 6)
    with open(path, "ab") as stream:
        stream.write(grown)
    afresh, new = lines.read()
    assert afresh and b"\n".join(new) == (b"1\n2\n3\n" + grown).rstrip()
    assert lines.read()[0] is False


def test_a_file_that_was_deleted_starts_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"1\n")
    lines = follow.Lines(path)
    assert list(lines.read()[1]) == [b"1"]
    path.unlink()
    assert list(lines.read()[1]) == []
    path.write_bytes(b"1\n")
    assert list(lines.read()[1]) == [b"1"]


def test_reading_on_stops_at_the_last_complete_line_until_everything_is_asked_for(tmp_path):
    path = tmp_path / "stdout.log"
    path.write_bytes(b"one\ntw")
    assert follow.since(path, 0, 100, whole_lines=True) == b"one\n"
    assert follow.since(path, 4, 100, whole_lines=True) == b""
    assert follow.since(path, 4, 100, whole_lines=False) == b"tw"


def test_a_progress_bar_is_followed_though_it_ends_no_line(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_bytes(b"\r 10%\r 20%")
    assert follow.since(path, 0, 100, whole_lines=True) == b"\r 10%\r"


def test_a_line_that_is_longer_than_a_piece_is_followed(tmp_path):
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x" * 20)
    assert follow.since(path, 0, 8, whole_lines=True) == b"x" * 8
    assert follow.since(path, 16, 8, whole_lines=True) == b""
    assert follow.since(path, 16, 8, whole_lines=False) == b"x" * 4


def test_a_log_that_is_not_there_yet_is_empty(tmp_path):
    assert follow.since(tmp_path / "no.log", 0, 100, whole_lines=True) == b""
    assert follow.last_lines(tmp_path / "no.log", 3) == 0
    assert follow.tail(tmp_path / "no.log", 3) == []


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"", b"ccc"]), max_size=12),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_the_last_lines_begin_where_a_split_of_the_whole_file_says(tmp_path_factory, parts, ended, count, chunk):
    path = tmp_path_factory.mktemp("tail") / "stdout.log"
    content = b"\n".join(parts) + (b"\n" if ended and parts else b"")
    path.write_bytes(content)
    before, follow.CHUNK = follow.CHUNK, chunk
    try:
        offset = follow.last_lines(path, count)
    finally:
        follow.CHUNK = before
    whole = content.splitlines(keepends=True)
    assert content[offset:] == b"".join(whole[-count:])


def test_a_tail_is_text_whatever_the_bytes_are(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_bytes(b"first\nsecond \xff\xfe\n" + b"x" * 2000 + b"\n")
    assert follow.tail(path, 2) == ["second \ufffd\ufffd", "x" * 500]
