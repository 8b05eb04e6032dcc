"""What is taken from elsewhere, and what is refused."""

from __future__ import annotations

import pytest

from launcher import admit
from launcher.admit import Refused


@pytest.mark.parametrize("value", [-1, 8, True, 1.0, "1", None, [1], 10**400])
def test_a_whole_number_is_one_within_its_bounds(value):
    assert admit.whole(7, "step", 7) == 7
    with pytest.raises(Refused, match=r"step is .* and should be a whole number from 0 to 7"):
        admit.whole(value, "step", 7)


@pytest.mark.parametrize("value", [None, 3, ["x"], "x" * 11])
def test_a_text_is_one_of_bounded_length_and_comes_back_clean(value):
    assert admit.text("a\nb\x1b[2J", "why", 10) == "a?b"
    assert admit.lines("a\nb\x1b[2J", "why", 10) == "a\nb"
    with pytest.raises(Refused, match=r"why is .* and should be text of at most 10 characters"):
        admit.text(value, "why", 10)


def test_lists_objects_flags_and_choices_are_what_they_should_be():
    assert admit.items([1, 2], "log", 2) == [1, 2]
    assert admit.group({"a": 1}, "answer", "a") == {"a": 1}
    assert admit.flag(False, "more") is False
    assert admit.choice("done", "state", ("done", "lost")) == "done"
    for refused in (
        lambda: admit.items([1, 2, 3], "log", 2),
        lambda: admit.items({}, "log", 2),
        lambda: admit.group([], "answer"),
        lambda: admit.group({"b": 1}, "answer", "a"),
        lambda: admit.flag(0, "more"),
        lambda: admit.choice("dead", "state", ("done", "lost")),
        lambda: admit.choice(["done"], "state", ("done", "lost")),
    ):
        with pytest.raises(Refused):
            refused()


OUTSIDE = [
    "",
    ".",
    "..",
    "../x",
    "a/../x",
    "/etc/x",
    "a//b",
    "a/",
    ".hidden",
    "a/.b",
    "a\0b",
    "a\nb",
    "a\u202eb",
    "\ud800",
]


@pytest.mark.parametrize("value", [*OUTSIDE, 3, None, "x" * 256, "/".join("a" * 40), "a/" * 600])
def test_a_path_stays_inside_its_folder_and_its_names_can_be_shown(value):
    assert admit.path("attempts/1/stopped.json", "name") == "attempts/1/stopped.json"
    with pytest.raises(Refused):
        admit.path(value, "name")
    assert not admit.is_name(value)


def test_a_long_text_of_controls_only_is_cleaned():
    for hostile in ("\x9d" * 300_000, "\x1b]" * 300_000, "\x9b" * 300_000, "\x1b[" + "0" * 300_000, "\ud800" * 300_000):
        assert "\x1b" not in admit.clean(hostile)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b\x9b\u202ec\u2066d\u2028e\u200ff", "a???c?d?e?f"),
        ("é 漢字 🦊", "é 漢字 🦊"),
        ("a\udcffb\ud800", "a?b?"),
        ("\x1b[91mERROR\x1b[0m: \x1b[1;38;5;208mno\x1b[m memory", "ERROR: no memory"),
        ("\x1b]0;title\x07a\x1b]8;;file:///x\x1b\\b", "ab"),
        ("\x9b2Ja", "a"),
        ("cut \x1b[9", "cut ?[9"),
        ("\x1b[\x1b[2J", "?["),
    ],
)
def test_of_a_text_control_sequences_are_left_out_and_other_controls_replaced(text, shown):
    assert admit.clean(text) == shown


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"step 1\n\tloss 0.5\n", b"step 1\n\tloss 0.5\n"),
        (b"\x1b[31mred\x1b[0m 50%|##  |\r\x1b[K\x1b[A", b"\x1b[31mred\x1b[0m 50%|##  |\r\x1b[K\x1b[A"),
        ("é 漢字\n".encode(), "é 漢字\n".encode()),
        (b"\x1b]52;c;b3duZWQ=\x07\x1b]0;title\x1b\\a\n", b"a\n"),
        (b"\x1b[6n\x1b[c\x1b[2J\x1bP$q\x1b\\\n", b"?P$q?\\\n"),
        (b"\x9b6n\xc2\x9b6n\n", "\ufffd6n\n".encode()),
        ("a\u202eb\n".encode(), b"a?b\n"),
        (b"\x1b[", b"?["),
    ],
)
def test_a_terminal_gets_colours_and_progress_bars_of_a_log_and_nothing_else_to_act_on(printed, shown):
    assert admit.clean_log(printed) == shown
