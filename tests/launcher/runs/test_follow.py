import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs import follow


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_each_line_comes_once_and_whole_however_the_file_grows(tmp_path_factory, parts, chunk):
    path = tmp_path_factory.mktemp("grow") / "metrics.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "CHUNK", chunk)
        lines = follow.Lines(path)
        assert list(lines.read()[1]) == []
        rows = []
        for part in parts:
            with open(path, "ab") as stream:
                stream.write(part)
            afresh, new = lines.read()
            assert not afresh
            rows += new
    assert rows == b"".join(parts).split(b"\n")[:-1]


@pytest.mark.parametrize("grown", [b"", b"4 again\n", b"4 again\n5 again\n6 again and longer than before\n", None])
def test_a_file_that_was_cut_back_or_deleted_is_read_from_its_start(tmp_path, grown):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"1\n2\n3\n4\n5\n")
    lines = follow.Lines(path)
    assert len(list(lines.read()[1])) == 5
    if grown is None:
        path.unlink()
        assert list(lines.read()[1]) == []
        path.write_bytes(b"1\n2\n3\n4\n5\n6\n")
    else:
        os.truncate(path, 6)
        with open(path, "ab") as stream:
            stream.write(grown)
    afresh, new = lines.read()
    assert afresh == (grown is not None) and b"\n".join(new) == path.read_bytes().rstrip()
    assert lines.read()[0] is False


@pytest.mark.parametrize(
    ("content", "offset", "whole", "rest"),
    [
        pytest.param(b"one\ntw", 0, b"one\n", b"one\ntw", id="up to the last complete line"),
        pytest.param(b"one\ntw", 4, b"", b"tw", id="from an offset"),
        pytest.param(b"\r 10%\r 20%", 0, b"\r 10%\r", b"\r 10%\r 20%", id="a progress bar ends no line"),
        pytest.param(b"x" * 30, 0, b"x" * 12, b"x" * 12, id="a line longer than a piece"),
        pytest.param(b"x" * 30, 24, b"", b"x" * 6, id="the end of a long line"),
        pytest.param(None, 0, b"", b"", id="no file yet"),
    ],
)
def test_a_piece_ends_with_a_line_until_everything_is_wanted(tmp_path, content, offset, whole, rest):
    path = tmp_path / "stdout.log"
    if content is not None:
        path.write_bytes(content)
    assert follow.since(path, offset, 12, whole_lines=True) == whole
    assert follow.since(path, offset, 12, whole_lines=False) == rest


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"", b"ccc"]), max_size=12),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_the_last_lines_begin_where_a_split_of_the_whole_file_says(tmp_path_factory, parts, ended, count, chunk):
    path = tmp_path_factory.mktemp("tail") / "stdout.log"
    assert follow.last_lines(path, count) == 0
    content = b"\n".join(parts) + (b"\n" if ended and parts else b"")
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "CHUNK", chunk)
        offset = follow.last_lines(path, count)
    assert content[offset:] == b"".join(content.splitlines(keepends=True)[-count:])


def test_a_tail_is_text_whatever_the_bytes_are(tmp_path):
    path = tmp_path / "stderr.log"
    assert follow.tail(path, 2) == []
    path.write_bytes(b"first\nsecond \xff\xfe\n" + b"x" * 2000 + b"\n")
    assert follow.tail(path, 2) == ["second \ufffd\ufffd", "x" * 500]
