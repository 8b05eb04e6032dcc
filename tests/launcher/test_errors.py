from __future__ import annotations

import pytest

from launcher.errors import placed


@pytest.mark.parametrize(
    "message, said",
    [
        ("amp=o9 is none", "amp=o9 is none (command line)"),
        ("add these lines:\n    a = 1\n    b = 2", "add these lines (command line):\n    a = 1\n    b = 2"),
        ("accept it with\n  ssh-keyscan", "accept it with (command line)\n  ssh-keyscan"),
    ],
)
def test_the_place_stands_behind_the_sentence_and_not_in_the_lines_to_copy(message: str, said: str) -> None:
    assert placed(message, " (command line)") == said


def test_without_a_place_a_message_is_as_it_was() -> None:
    assert placed("add these lines:\n    a = 1", "") == "add these lines:\n    a = 1"
