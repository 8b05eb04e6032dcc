"""Help is written for 120 columns, and read on terminals that have fewer."""

from __future__ import annotations

import pytest

from launcher.commands import VERBS
from launcher.ui.fitted import fitted

from ..terminal import launcher


def test_paragraphs_are_filled_anew() -> None:
    assert fitted("one two three\nfour\n\nfive six", 12) == "one two\nthree four\n\nfive six"


def test_a_list_continues_below_its_last_column() -> None:
    text = "  --flag FILE  what it does with the file\n  --other      nothing"
    assert fitted(text, 40).split("\n")[:2] == ["  --flag FILE  what it does with the", "               file"]
    assert fitted(text, 40).endswith("\n  --other      nothing")


def test_a_command_continues_behind_its_beginning() -> None:
    text = "usage: python -m launcher run [key=value] [more]\n       python -m launcher short"
    assert fitted(text, 42).split("\n") == [
        "usage: python -m launcher run [key=value]",
        "           [more]",
        "       python -m launcher short",
    ]


def test_a_line_of_choices_is_broken_between_them() -> None:
    assert fitted("  amp=alpha|beta|gamma|delta", 20).split("\n") == ["  amp=alpha|beta|", "      gamma|delta"]


def test_without_a_limit_it_is_unchanged() -> None:
    assert fitted("x" * 300, 0) == "x" * 300


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_each_help_fits_a_terminal(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = launcher(*filter(None, [verb]), "--help").all_shown().replace("\r", "").splitlines()
    assert len(shown) > 5 and [line for line in shown if len(line) > 80 and " " in line.strip()] == []
