from launcher import tables


def test_columns_stand_under_each_other_and_lines_end_where_their_text_ends():
    lines = tables.table(("RUN", "STEP", "ASKED"), [("a", "7", "amp=o2"), ("longer", "1234", "")], right=frozenset({1}))
    assert lines == ["RUN     STEP  ASKED", "a          7  amp=o2", "longer  1234"]


def test_no_character_of_a_cell_reaches_the_terminal_as_a_command():
    assert tables.table(("A",), [("\x1b[2Jx\ny\x7f",)])[1] == "?[2Jx?y?"
    assert tables.pairs([("a", "x\x1b[0m")]) == ["a  x?[0m"]
    assert tables.clean("a\x9b2Jb\u202ec\u2066d\u2028e\u200ff") == "a?2Jb?c?d?e?f"
    assert tables.clean("é 漢字 🦊") == "é 漢字 🦊"


def test_values_of_several_lines_stay_in_their_column():
    assert tables.pairs([("run", "one\ntwo"), ("folder", ""), ("x", "y")]) == [
        "run     one",
        "        two",
        "folder",
        "x       y",
    ]
