from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.containers.description import Mount
from launcher.containers.engines import mount_fields
from launcher.containers.words import EnvArg, EnvArgs, Word, prefixed, to_bash
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


def test_a_flag_goes_before_what_stands_before_a_variable() -> None:
    assert prefixed("--shell=", "a b") == "--shell=a b"
    assert prefixed("--env=", EnvArg("VALUE", "X=", "!")) == EnvArg("VALUE", "--env=X=", "!")


def test_a_field_of_a_mount_is_quoted_where_csv_needs_it() -> None:
    for source, field in (("/a b", "source=/a b"), ("/a,b", '"source=/a,b"'), ('/a"b', '"source=/a""b"')):
        assert (
            mount_fields(Mount(source=source, target="/c", read_only=True)) == f"type=bind,{field},target=/c,readonly"
        )
