import importlib
import random
import sys

import numpy
import pytest

from amp_launcher.around import random_draws

DRAWING = """
import random
import numpy
from random import randint
generators = random.randint, numpy.random.rand
numbers = [randint(0, 2**62) for _ in range(9)], random.random(), numpy.random.rand(5), random.choices("abc", k=3)
letters = list("abcdef")
random.shuffle(letters)
"""
SEEDED = """
random.seed(3)
numpy.random.seed(3)
"""


def state():
    return random.getstate(), [*numpy.random.get_state()[1], numpy.random.get_state()[2]]


@pytest.mark.parametrize("text", [DRAWING, DRAWING + SEEDED], ids=["drawn", "seeded"])
def test_what_an_import_drew_is_drawn_again_once_from_the_seeds_that_are_set_then(text, tmp_path, monkeypatch):
    (tmp_path / "draws_on_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = random.getstate()
    try:
        with random_draws.noted():
            module = importlib.import_module("draws_on_import")
        letters, generators = list(module.letters), module.generators
        random.seed(1)
        numpy.random.seed(1)
        random_draws.draw_again()
        again = state()
        random_draws.draw_again()
        module.randint(0, 5)  # which the module keeps, and which notes nothing more
        random_draws.draw_again()
        assert module.letters == letters
        random.seed(1)
        numpy.random.seed(1)
        importlib.reload(module)
        assert again == state()
    finally:
        random.setstate(before)
        sys.modules.pop("draws_on_import", None)
    assert random.randint is not generators[0], "the modules have their own functions again"
