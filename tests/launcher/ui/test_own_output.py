import contextlib
import io
from pathlib import Path

import pytest

from launcher.executors import logs
from launcher.runs.log_pieces import LogOffset, Piece
from launcher.runs.states import State
from launcher.ui.display import Row
from launcher.ui.own_output import OwnOutput
from launcher.ui.progress import Progress
from tests.launcher.terminal import cells_of, screen_of

ROW = Row("brave-otter", State("running", attempt=1), Progress(step=3))
STATUS = "brave-otter  running  step 3"


class TerminalBytes(io.BytesIO):
    def isatty(self):
        return True

    def received(self):
        return self.getvalue().replace(b"\n", b"\r\n")  # as a terminal's driver does


@pytest.fixture
def printed(monkeypatch):
    """What the terminal got of a run that printed these pieces, before and after words of the launcher's own."""

    def show(*pieces):
        left = [piece if isinstance(piece, tuple) else (piece, b"") for piece in pieces]
        monkeypatch.setattr(
            logs, "source", lambda run: lambda place, **how: Piece(LogOffset(1), left.pop(0), more=False, ended=False)
        )
        terminal = TerminalBytes()
        output = OwnOutput(Path("root/run"), io.TextIOWrapper(terminal), io.TextIOWrapper(terminal))
        with contextlib.closing(output) as shown:
            while left:
                shown.show([ROW])
            before = terminal.received()
            shown.say("asked to stop")
            return before, terminal.received()

    monkeypatch.setenv("TERM", "xterm")
    return show


@pytest.mark.parametrize(
    ("pieces", "screen"),
    [
        ([b"one\n", b"two\n"], ["one", "two", STATUS]),
        ([b"\x1b[3", b"1mred\x1b[0", b"m\n"], ["red", STATUS]),
        ([b"caf\xc3", b"\xa9\n"], ["caf\xe9", STATUS]),
        ([b"\x1b]0;title\x07a\x1b[6nb\x9bc\n"], ["ab\ufffdc", STATUS]),
        ([b"\x1b]0;ti", b"tle\x07a\x1b[", b"6nb\n"], ["?]0;title?ab", STATUS]),
        ([b"one\n", b"\x1b[0m", b"\x1b[?25h"], ["one", STATUS]),
        ([b"one\n", (b"", b"\r 50%|#")], ["one", " 50%|#"]),
        ([(b"", b"\r 50%|#"), b"\x1b[0m"], [" 50%|#"]),
        ([(b"", b"\r 50%|#"), b"one\n"], [" 50%|#", "one", STATUS]),
    ],
)
def test_a_terminal_shows_what_was_printed_piece_by_piece_and_the_status_below_whole_lines(printed, pieces, screen):
    before, after = printed(*pieces)
    assert screen_of(before) == screen
    assert screen_of(after) == [*(line for line in screen if line != STATUS), "asked to stop"]
    assert all(cells_of(after)[: len(screen_of(after))]), "no empty line between them"


def test_words_of_the_launcher_take_the_place_of_bars_below_the_cursor(printed):
    before, after = printed((b"", b"epochs 1\n\rbatches 1 of 99999\n\rlosses\x1b[A\x1b[A\r"))
    assert screen_of(before) == ["epochs 1", "batches 1 of 99999", "losses"]
    assert screen_of(after) == ["epochs 1", "asked to stop"]


def test_a_colour_goes_on_in_the_next_piece_and_never_colours_the_status(printed):
    rows = cells_of(printed(b"\x1b[31mred one\n", b"red two\n", b"\x1b[0mplain\n")[0])
    assert [{style for style, _ in row} for row in rows] == [{"31"}, {"31"}, {""}, {"2"}]
    rows = cells_of(printed(b"\x1b[31mred one\n")[0])
    assert [{style for style, _ in row} for row in rows] == [{"31"}, {"2"}]
