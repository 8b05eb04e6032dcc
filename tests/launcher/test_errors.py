from __future__ import annotations

import pytest

from launcher.errors import UsageError, of_each, placed


@pytest.mark.parametrize(
    ("message", "placed_message"),
    [
        ("amp=o9 is none", "amp=o9 is none (command line)"),
        ("add these lines:\n    a = 1\n    b = 2", "add these lines (command line):\n    a = 1\n    b = 2"),
        ("accept it with\n  ssh-keyscan", "accept it with (command line)\n  ssh-keyscan"),
    ],
)
def test_the_place_stands_behind_the_sentence_and_not_in_the_lines_to_copy(message, placed_message):
    assert placed(message, " (command line)") == placed_message


def test_without_a_place_a_message_is_as_it_was():
    assert placed("add these lines:\n    a = 1", "") == "add these lines:\n    a = 1"


def test_a_refusal_of_some_of_several_has_their_labels():
    def make(value):
        if value < 0:
            raise UsageError("it is below zero")
        return value

    assert of_each([("a", 1), ("b", 2)], make, "arm") == [1, 2]
    with pytest.raises(UsageError, match=r"^it is below zero \(in the arm b; nothing was started\)$"):
        of_each([("a", 1), ("b", -2)], make, "arm")
    with pytest.raises(UsageError, match=r"\(in the cells b, c, d, e and 2 more; nothing was started\)$"):
        of_each([("a", 1), *((label, -1) for label in "bcdefg")], make, "cell")
    with pytest.raises(UsageError, match=r"^it is below zero$"):
        of_each([("a", -1), ("b", -2)], make, "arm")
