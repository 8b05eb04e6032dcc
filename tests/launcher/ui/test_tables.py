import pytest

from launcher.ui import tables


def test_columns_stand_under_each_other_and_lines_end_where_their_text_ends():
    lines = tables.table(("RUN", "STEP", "ASKED"), [("a", "7", "amp=o2"), ("longer", "1234", "")], right=frozenset({1}))
    assert lines == ["RUN     STEP  ASKED", "a          7  amp=o2", "longer  1234"]


def test_no_character_of_a_cell_reaches_the_terminal_as_a_command():
    assert tables.table(("A",), [("\x1b[2Jx\ny\x7f",)])[1] == "x?y?"
    assert tables.pairs([("a", "x\x1b[0m")]) == ["a  x"]


def test_values_of_several_lines_stay_in_their_column():
    assert tables.pairs([("run", "one\ntwo"), ("folder", ""), ("x", "y")]) == [
        "run     one",
        "        two",
        "folder",
        "x       y",
    ]


HEADER, ROWS = (
    ("RUN", "STEP", "PROOF", "ASKED"),
    [("brave-otter", "120", "proved", "mnist amp=o2 batch=512 steps=1000")],
)


@pytest.mark.parametrize(
    ("width", "shown", "missing"),
    [
        (0, "brave-otter   120  proved  mnist amp=o2 batch=512 steps=1000", None),
        (200, "brave-otter   120  proved  mnist amp=o2 batch=512 steps=1000", None),
        (50, "brave-otter   120  proved  mnist amp=o2 batch=512…", None),
        (40, "brave-otter  proved  mnist amp=o2 batch…", "(no room for STEP in 40 columns)"),
        (30, "brave-otter  mnist amp=o2 bat…", "(no room for STEP, PROOF in 30\ncolumns)"),
        (20, "brave-otter", "(no room for STEP,\nPROOF, ASKED in 20\ncolumns)"),
    ],
)
def test_a_table_cuts_its_last_column_and_then_leaves_out_others_and_says_so(width, shown, missing):
    header, row, *rest = tables.table(HEADER, ROWS, right=frozenset({1}), width=width, spare=("STEP", "PROOF", "ASKED"))
    assert (row, "\n".join(rest) or None) == (shown, missing)
    assert not width or max(map(len, (header, row, *rest))) <= width


def test_a_long_value_is_folded_under_itself_and_a_path_stays_whole():
    rows = [("asked", "amp=o2 batch=512 steps=1000"), ("folder", "/a/path/that/is/longer/than/that")]
    assert tables.pairs(rows, 26) == [
        "asked   amp=o2 batch=512",
        "        steps=1000",
        "folder  /a/path/that/is/longer/than/that",
    ]
