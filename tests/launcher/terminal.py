"""A person at a terminal: a command under a pseudo-terminal, what is typed into it and what it shows."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from tests import patience

_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[78])")


class Terminal:
    """A command that sees a terminal."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.shown = ""
        self.raw = b""
        self.code: int | None = None
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            for number in (signal.SIGINT, signal.SIGHUP):  # ignored if the tests run in the background
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], list(argv), dict(environment or os.environ))

    def type(self, line: str) -> None:
        self.press(f"{line}\n".encode())

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def expect(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Wait until it shows this. What was shown up to its end is forgotten."""
        deadline = time.monotonic() + patience.scaled(seconds)
        while not (match := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"no {pattern!r} in what it showed: {self.shown[-2000:]!r}"
            assert self._read(0.1) or self.code is None, f"it ended with {self.code}: {self.shown[-2000:]!r}"
        self.shown = self.shown[match.end() :]
        return match

    def ask(self, command: str, seconds: float = 60.0) -> str:
        """Type a command and give what it printed. The mark is typed in two pieces, so that its echo isn't taken for
        what it printed."""
        self.type(f"{command}; printf '%s%s\\n' '<en' 'd>'")
        return self.expect(r"\n([^<]*)<end>", seconds)[1].strip()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + patience.scaled(seconds)
        while self.code is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.shown[-2000:]!r}"
            self._read(0.1)
        return self.code

    def all_shown(self) -> str:
        """Everything it showed, once it has ended."""
        self.wait()
        while self._read(0):
            pass
        self.close()
        return _COLOURS.sub("", self.raw.decode(errors="replace"))

    def hang_up(self) -> None:
        """The window is closed."""
        with contextlib.suppress(OSError):
            os.close(self._end)

    def close(self) -> None:
        self.hang_up()
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _read(self, seconds: float) -> bool:
        """Whether there was something. Whether it has ended is asked first: what it showed before that is there by
        then."""
        if self.code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self.code = os.waitstatus_to_exitcode(status)
        ready, _, _ = select.select([self._end], [], [], seconds)
        if ready:
            with contextlib.suppress(OSError):
                if content := os.read(self._end, 2**16):
                    self.raw += content
                    self.shown = _COLOURS.sub("", self.shown + content.decode(errors="replace")).replace("\r", "")
                    return True
        return False


def launcher(*words: str, environment: Mapping[str, str] | None = None) -> Terminal:
    """`python -m launcher` at a terminal."""
    return Terminal([sys.executable, "-m", "launcher", *words], environment)


def screen_of(raw: bytes) -> list[str]:
    """The lines with text that a terminal shows, and those that left it at its top."""
    return [line for row in cells_of(raw) if (line := "".join(character for _, character in row))]


def cells_of(raw: bytes) -> list[list[tuple[str, str]]]:
    """Each row's characters, each after its colours and attributes (the parameters of SGR since the last reset)."""
    rows: list[list[tuple[str, str]]] = [[]]
    row, column, style = 0, 0, ""
    saved = row, column, style
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[78]|[^\x1b]", raw.decode()):
        if token == "\n":
            row += 1
            rows += [[]] * (row == len(rows))
        elif token == "\r":
            column = 0
        elif token == "\x1b7":
            saved = row, column, style
        elif token == "\x1b8":
            row, column, style = saved
        elif not token.startswith("\x1b"):
            rows[row] = [*rows[row][:column], (style, token), *rows[row][column + 1 :]]
            column += 1
        elif token[-1] == "A":
            row -= int(token[2:-1] or 1)
        elif token[-1] == "m":
            style = "" if token in ("\x1b[m", "\x1b[0m") else style + token[2:-1]
        elif token[-1] in "JK":
            rows[row] = rows[row][:column]
            if token[-1] == "J":
                rows[row + 1 :] = []
    return rows
