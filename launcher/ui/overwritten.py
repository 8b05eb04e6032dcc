"""A program's output as lines, which carriage returns and cursor moves overwrite as on a terminal."""

from __future__ import annotations

import codecs
import re

from launcher.admit import clean_log

MOST_ROWS = 8
"""Rows that can still be overwritten, for progress bars below each other. Above these, rows are finished."""
TAB = 8
_TOKENS = re.compile(r"\x1b\[([0-9;]*)([mKABCDG])|[\r\n\b\t\x07]|[^\x1b\r\n\b\t\x07]+")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*)?\Z")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MOVES = re.compile(r"[\r\b\t\x07\x1b]")
WIDEST = 4096
"""Largest column that the cursor can be moved to."""
_RESET = "\x1b[0m"

_Cell = tuple[str, str]
"""The escape sequences that colour a character, and the character."""


class Overwritten:
    """Splits output, in pieces of any size, into finished lines and lines that may still change."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """An incomplete control sequence at the end of the last piece."""
        self._rows: list[list[_Cell]] = [[]]
        self._row = self._column = 0
        self._style = ""

    def feed(self, content: bytes) -> list[str]:
        """Take the next piece of output. Returns the lines that it finishes: those above the cursor."""
        text = self._rest + self._decoder.decode(content)
        unfinished = _UNFINISHED.search(text)
        self._rest = text[unfinished.start() :] if unfinished else ""
        text = clean_log(text[: len(text) - len(self._rest)].encode("utf-8", "replace")).decode()
        finished = []
        for line in _LINES.findall(text):
            if line.endswith("\n") and self._rows == [[]] and not self._style and not _MOVES.search(line):
                finished.append(line[:-1])  # the usual case
                continue
            self._print(line)
            if self._row == len(self._rows) - 1 and self._row >= MOST_ROWS:
                finished += self._finish(1)
        return [*finished, *self._finish(self._row)]

    def unfinished(self) -> list[str]:
        """The rows that may still change, without their colours."""
        rows = ["".join(character for _, character in row).rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def end(self) -> list[str]:
        """Finish the remaining lines after the program has ended, and return them."""
        remaining = self._finish(len(self._rows))
        self._rows, self._column = [[]], 0
        while remaining and not remaining[-1]:
            remaining.pop()
        return remaining

    def _finish(self, count: int) -> list[str]:
        done, self._rows = self._rows[:count], self._rows[count:]
        self._row = max(0, self._row - count)
        return [_text(row) for row in done]

    def _print(self, text: str) -> None:
        for token in _TOKENS.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] == "\n":
                self._down(1)
                self._column = 0
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\b":
                self._column = max(0, self._column - 1)
            elif token[0] == "\t":
                self._put(" " * (TAB - self._column % TAB))
            elif token[0] != "\x07":
                self._put(token[0])

    def _put(self, text: str) -> None:
        row = self._rows[self._row]
        if len(row) < self._column:
            row += [("", " ")] * (self._column - len(row))
        row[self._column : self._column + len(text)] = [(self._style, character) for character in text]
        self._column += len(text)

    def _down(self, count: int) -> None:
        self._row += count
        while len(self._rows) <= self._row:
            self._rows.append([])

    def _control(self, numbers: str, letter: str) -> None:
        """ECMA-48: SGR, erase in line, cursor up, down, forward, back, to column."""
        if letter == "m":
            before = self._style if len(self._style) < 64 else ""
            self._style = "" if numbers in ("", "0") else f"{before}\x1b[{numbers}m"
            return
        first = numbers.partition(";")[0]
        count = max(1, min(int(first or 1), 1000)) if len(first) < 5 else 1000
        row = self._rows[self._row]
        if letter == "K":
            if first in ("", "0"):
                del row[self._column :]
            else:
                erased = len(row) if first == "2" else min(self._column + 1, len(row))
                row[:erased] = [("", " ")] * erased
        elif letter == "A":
            self._row = max(0, self._row - count)
        elif letter == "B":
            self._down(min(count, MOST_ROWS))
        elif letter == "C":
            self._column = min(self._column + count, WIDEST)
        elif letter == "D":
            self._column = max(0, self._column - count)
        else:
            self._column = count - 1


def _text(row: list[_Cell]) -> str:
    parts, now = [], ""
    for style, character in row:
        if style != now:
            parts.append(_RESET * bool(now) + style)
            now = style
        parts.append(character)
    return "".join(parts).rstrip() + _RESET * bool(now)
