"""What is taken from elsewhere, and what is refused."""

from __future__ import annotations

import re

import pytest

from launcher import admit
from launcher.admit import Refused


@pytest.mark.parametrize("value", [-1, 8, True, 1.0, "1", None, [1], 10**400])
def test_a_whole_number_is_one_within_its_bounds(value):
    assert (admit.whole(0, "step", 7), admit.whole(7, "step", 7)) == (0, 7)
    with pytest.raises(Refused, match=r"step is .* and should be a whole number from 0 to 7"):
        admit.whole(value, "step", 7)


@pytest.mark.parametrize("value", [2.0**53 + 2, -(2.0**53) - 2, float("nan"), float("inf"), True, "1", None])
def test_a_number_is_finite_and_bounded_on_both_sides(value):
    assert [admit.number(bound, "seen") for bound in (2**53, -(2**53), 0.5)] == [2.0**53, -(2.0**53), 0.5]
    with pytest.raises(Refused, match=r"seen is .* and should be a number"):
        admit.number(value, "seen")


@pytest.mark.parametrize("value", [None, 3, ["x"], "x" * 11])
def test_a_text_is_one_of_bounded_length_and_comes_back_clean(value):
    assert admit.text("a\nb\x1b[2J", "why", 10) == "a?b"
    assert admit.lines("a\nb\x1b[2J", "why", 10) == "a\nb"
    assert admit.raw("x" * 10, "why", 10) == "x" * 10
    with pytest.raises(Refused, match=r"why is .* and should be text of at most 10 characters"):
        admit.text(value, "why", 10)


def test_lists_objects_flags_and_choices_are_what_they_should_be():
    assert admit.items([1, 2], "log", 2) == admit.items([1, 2], "log", 3, 2) == [1, 2]
    assert admit.group({"a": 1}, "answer", "a") == {"a": 1}
    assert admit.flag(False, "more") is False
    assert admit.choice("done", "state", ("done", "lost")) == "done"
    for refused in (
        lambda: admit.items([1, 2, 3], "log", 2),
        lambda: admit.items([1], "log", 3, 2),
        lambda: admit.items({}, "log", 2),
        lambda: admit.group([], "answer"),
        lambda: admit.group({"b": 1}, "answer", "a"),
        lambda: admit.flag(0, "more"),
        lambda: admit.choice("dead", "state", ("done", "lost")),
        lambda: admit.choice(["done"], "state", ("done", "lost")),
    ):
        with pytest.raises(Refused):
            refused()


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda: admit.items([1], "log", 2, 2), "log is a list of 1 and should be a list of 2 items"),
        (lambda: admit.items({}, "log", 3, 2), "log is an object of 0 and should be a list of 2 to 3 items"),
        (lambda: admit.choice(10**40, "it", "ba"), f"it is 1{'0' * 40} and should be one of a, b"),
        (lambda: admit.choice(-(10**40) - 1, "it", "ba"), "it is a huge number and should be one of a, b"),
        (lambda: admit.choice(True, "it", "abcdefghijkl"), "it is True and should be one of a, b, c, .*, l"),
        (lambda: admit.choice("x" * 58, "it", "abcdefghijklm"), f"it is '{'x' * 58}' and .* those that were requested"),
        (lambda: admit.choice("x" * 59, "it", "a"), f"it is '{'x' * 56}[.]{{3}} and should be one of a"),
    ],
)
def test_a_refusal_shows_the_value_cut_short_and_the_choices_where_they_are_few(check, said):
    with pytest.raises(Refused) as refused:
        check()
    assert re.fullmatch(said, str(refused.value))


def test_a_name_is_shown_as_it_is_where_it_is_short_and_ascii():
    for name in ("x" * 60, "a b"):
        assert admit.shown_name(name) == name
    for name in ("x" * 61, "é", "a\x1b", ".hidden"):
        assert admit.shown_name(name) != name and admit.shown_name(name).isascii()


def test_the_longest_name_and_the_longest_and_deepest_path_are_valid():
    longest = "/".join(["a" * 255] * 4)
    assert len(longest) == admit.LONGEST_PATH - 1
    for path in (f"{longest[:-1]}/a", "/".join("a" * admit.DEEPEST)):
        assert admit.path(path, "it") == path
    for path in (f"{longest}/a", "/".join("a" * (admit.DEEPEST + 1))):
        assert not admit.is_path(path)


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
