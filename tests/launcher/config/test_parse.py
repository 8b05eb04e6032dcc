from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.sweep import cells
from launcher.errors import UsageError

COMPOSER = Composer()

TEXT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs", "Cc")), max_size=30)
NASTY = st.lists(st.sampled_from(["${", "$", "{", "}", "\\", "'", '"', "=", ",", ":", "a", " ", "["]), max_size=8)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("env.V=1.10", "env.V", "1.10"),
        ("env.A=x=y", "env.A", "x=y"),
        ("name=1e3", "name", "1e3"),
        ("run_root=~/x", "run_root", "~/x"),
        ("cluster.constraint=a100&nvlink", "cluster.constraint", "a100&nvlink"),
        ("cluster.time=24:00:00", "cluster.time", "24:00:00"),
        ("cluster.qos=no", "cluster.qos", "no"),
        ("env.A=a,b", "env.A", "a,b"),
        ("env.A=", "env.A", ""),
        ("secrets.K=~/.key", "secrets.K", "~/.key"),
        ("env.A=$(id)", "env.A", "$(id)"),
    ],
)
def test_text_arrives_as_typed(word: str, key: str, value: str) -> None:
    override = parse(word)
    assert (override.key, override.values) == (key, (value,))


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("image=a:1,b:2", ("a:1", "b:2")),
        ("image=choice(a:1, b:2)", ("a:1", "b:2")),
        ("env.A=choice(1.10,no)", ("1.10", "no")),
        ('env.A=choice("0,1",0)', ("0,1", "0")),
        ("env.A=choice", ("choice",)),
    ],
)
def test_texts_are_listed_by_choice_and_images_by_commas(word: str, values: tuple[object, ...]) -> None:
    assert parse(word).values == values


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("amp=o0,o1,o2", ("o0", "o1", "o2")),
        ("recipe=mnist,gan", ("mnist", "gan")),
        ("data=digits,null", ("digits", None)),
        ("batch=128,256", (128, 256)),
        ("seed=range(0,3)", (0, 1, 2)),
        ("visible_gpus=[0,2]", ([0, 2],)),
        ("amp.deny=[conv2d],[matmul,bmm]", (["conv2d"], ["matmul", "bmm"])),
        ("proof.share=1e-3,2e-3", (1e-3, 2e-3)),
        ("seed=range(5,0,-2)", (5, 3, 1)),
        ("loss_scale.init=range(0,0.3,0.1)", (0.0, 0.1, 0.2)),
        ("checkpoint={every: 5, keep:2}", ({"every": 5, "keep": 2},)),
        ("env={A: 'x, y'}", ({"A": "x, y"},)),
        ("container.limits=null", (None,)),
        ("name=null", (None,)),
        ("env.A=null", ("null",)),
        ("tf32=null", (None,)),
    ],
)
def test_values_are_read_by_the_type_of_their_key(word: str, values: tuple[object, ...]) -> None:
    assert parse(word).values == values


@settings(max_examples=20)
@given(st.one_of(TEXT, NASTY.map("".join)))
def test_any_text_arrives_unevaluated(text: str) -> None:
    (cell,) = cells(COMPOSER, [parse(f"env.A={text}")])
    assert cell.config["env"] == {"A": text}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("plain", "neither a verb nor key=value"),
        ("amp.deny", "amp.deny is a key and needs a value: amp.deny=..."),
        ("batch=[1", "batch=[1: a bracket is not closed"),
        ("batch=1.5", "batch=1.5 should be a whole number"),
        ("checkpoint=5", "checkpoint=5 should be a group of keys: every, keep, stop_every"),
        ("checkpoint={evry: 5}", "unknown key checkpoint.evry; did you mean checkpoint.every?"),
        ("checkpoint={every}", "checkpoint: every should be NAME: value"),
        ("mounts=[a&b:/c", "a bracket is not closed; write [a,b]"),
        ("cluster.flags=[a,,b]", "the list has an empty item"),
        ("cluster.flags=[a] b", "nothing may follow the closing ]"),
        ("seed=range(0,1,0)", "has a step of 0"),
        ("~seed=[1],[2]", "names several values"),
        ("~seed=1,2", "names several values"),
        ("seed=rang(0,3)", "choice(a,b) or range(start,stop,step)"),
        ("seed=range(0,0)", "seed=range(0,0) lists no value"),
        ("seed=range(0,1e99)", "say range(start,stop,step) in numbers up to"),
        ("seed=range(a)", "seed=range(a) can't be read"),
        ("batch=interval(1,2)", "range(start,stop,step)"),
        ("batch=glob(*)", "glob() lists no values"),
        ("hydra.run.dir=x", "have no effect here"),
        ("image=a,", "image=a,: the list has an empty item"),
        ("env.A=choice()", "env.A=choice() lists no value"),
        ("env.A=a\nb", "control character '\\n'"),
        ("name=a\x1bb", "control character"),
    ],
)
def test_what_cannot_be_read_is_said(word: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(word)
    assert says in str(error.value)
