from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.containers.words import EnvArg, EnvArgs, Word, to_bash
from tests.containers.readers import fill

TEXT = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",), exclude_characters="\x7f"), max_size=40)
WORDS: st.SearchStrategy[Word] = st.one_of(
    TEXT, st.builds(EnvArg, st.just("VALUE"), TEXT, TEXT), st.just(EnvArgs("ITEMS", "--device=nvidia.com/gpu="))
)


@settings(max_examples=60)
@given(words=st.lists(WORDS, max_size=30), value=TEXT)
def test_bash_and_python_agree_about_every_word(words: list[Word], value: str) -> None:
    environment = {"VALUE": value, "ITEMS": "0,GPU-1a2b,3"}
    script = "set -u; printf '%s\\0' " + " ".join(map(to_bash, [*words, "end"]))
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == fill([*words, "end"], environment)


def test_a_variable_that_is_not_set_stops_the_command() -> None:
    script = f"set -u; echo {to_bash(EnvArg('MISSING'))}"
    assert subprocess.run(["bash", "-c", script], env={}, capture_output=True).returncode != 0
