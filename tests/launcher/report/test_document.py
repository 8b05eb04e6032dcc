"""Tables as values: columns without values, and what all rows share."""

from __future__ import annotations

import pytest

from launcher.report.document import Prose, Table, numbers, of_columns, shared, text, texts


def table(*rows, header="run mode host", right=(1, 2)):
    cells = tuple(tuple(map(text, row.split())) for row in rows)
    return Table(header=tuple(header.split()), rows=cells, numbers=frozenset(right))


@pytest.mark.parametrize(
    ("rows", "sentence", "header", "right"),
    [
        (("a o0 here", "b o2 here"), "The same in all: host here.", ("run", "mode"), {1}),
        (("a o0 here", "b o0 there"), "The same in all: mode o0.", ("run", "host"), {1}),
        (("a o0 - ", "b o2 -"), None, ("run", "mode"), {1}),
        (("a o0 here", "b o2 there"), None, ("run", "mode", "host"), {1, 2}),
        (("a o0 here",), None, ("run", "mode", "host"), {1, 2}),
        (("a o0 here", "b o0 here"), "The same in all: mode o0; host here.", None, None),
    ],
)
def test_what_all_rows_share_is_a_sentence_and_not_a_column(rows, sentence, header, right):
    parts = list(shared(table(*rows)))
    assert [part.text for part in parts if isinstance(part, Prose)] == ([sentence] if sentence else [])
    tables = [(part.header, part.numbers) for part in parts if isinstance(part, Table)]
    assert tables == ([(header, right)] if header else [])


def test_columns_without_a_value_are_left_out_and_the_others_keep_their_side():
    columns = [texts("run", ["a", "b"]), numbers("batch", [None, None]), numbers("loss", [None, 0.5])]
    made = of_columns(columns, spare=("batch", "loss"))
    assert (made.header, made.numbers, made.spare) == (("run", "loss"), {1}, ("loss",))
    assert [[(cell.text, cell.value) for cell in row] for row in made.rows] == [
        [("a", "a"), ("-", None)],
        [("b", "b"), ("0.5", 0.5)],
    ]
