from __future__ import annotations

import itertools

from tests import golden

TEXTS = [
    "".join(f"{line}\n" for line in lines)
    for count in range(5)
    for lines in itertools.product(("", "a", "b"), repeat=count)
]


def test_two_texts_never_have_the_same_difference_from_a_third() -> None:
    for base in TEXTS:
        assert len({golden.difference(text, base) for text in TEXTS}) == len(TEXTS)


def test_a_difference_says_where_it_is_what_is_gone_and_what_is_new() -> None:
    base = "if x\n  a\nfi\nif y\n  b\nfi\nend\n"
    assert golden.difference(base, base) == ""
    assert golden.difference("new\nif x\n  a\nfi\nif z\n  b\nfi\n", base) == (
        "@ beginning\n+ new\n@ fi (1 of 2)\n- if y\n+ if z\n@ fi (2 of 2)\n- end\n"
    )
