import pytest

from launcher.ui.overwritten import MOST_ROWS, Overwritten


def shown(*pieces):
    """The finished lines and the others, after these pieces."""
    printed = Overwritten()
    finished = [line for piece in pieces for line in printed.feed(piece)]
    return finished, printed.unfinished()


@pytest.mark.parametrize(
    ("pieces", "finished", "unfinished"),
    [
        ([b"one\ntwo\n"], ["one", "two"], []),
        ([b"one\n\ntw", b"o"], ["one", ""], ["two"]),
        ([b"\r 10%|#   |", b"\r 20%|##  |"], [], [" 20%|##  |"]),
        ([b"\r 90%|###|\r100%|####|\nnext\n"], ["100%|####|", "next"], []),
        ([b"a long one\rshort"], [], ["shortg one"]),
        ([b"a long one\r\x1b[Kshort\n"], ["short"], []),
        ([b"12/60\b\b\b\b\b13/60"], [], ["13/60"]),
        ([b"\ra\tb\n"], ["a       b"], []),
        ([b"caf\xc3", b"\xa9\n"], ["café"], []),
        ([b"x\x1b", b"[2Ky\n"], [" y"], []),
    ],
)
def test_overwritten_text_is_replaced(pieces, finished, unfinished):
    assert shown(*pieces) == (finished, unfinished)


def test_bars_below_each_other_stay_where_they_are():
    bars = [f"\repochs {at}\n\rbatches {at}\x1b[A".encode() for at in range(5)]
    assert shown(*bars) == ([], ["epochs 4", "batches 4"])
    assert shown(*bars, b"\n\nover\n") == (["epochs 4", "batches 4", "over"], [])


def test_colours_end_with_their_line_and_begin_again_on_the_next():
    assert shown(b"\x1b[32mgreen\nstill\x1b[0m plain\n")[0] == [
        "\x1b[32mgreen\x1b[0m",
        "\x1b[32mstill\x1b[0m plain\x1b[0m"[: -len("\x1b[0m")],
    ]


def test_a_terminal_gets_no_other_control_sequence():
    finished, _ = shown(b"\x1b]0;title\x07a\x1b[6nb\x9bc\n")
    assert "\x1b" not in finished[0] and "title" not in finished[0]


def test_cursor_moves_take_little_memory():
    printed = Overwritten()
    printed.feed(b"\x1b[999999999C" * 1000 + b"\x1b[99999999B" * 1000 + b"x")
    assert sum(map(len, printed.unfinished())) < 10_000
    assert len(printed.unfinished()) <= MOST_ROWS + 1


def test_the_end_of_a_program_finishes_its_last_line():
    printed = Overwritten()
    assert printed.feed(b"no end of line") == []
    assert printed.end() == ["no end of line"] and printed.unfinished() == []
