"""Words of the command line: texts as they are typed, values by the type of their key, and lists of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_launcher.typed import show
from amp_launcher.values import read
from launcher.config.compose import Composer
from launcher.config.parse import parse, read_values
from launcher.config.sweep import cells
from tests.launcher.hosts import spec_of

COMPOSER = Composer()

TEXT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs", "Cc")), max_size=30)
NASTY = st.lists(st.sampled_from(["${", "$", "{", "}", "\\", "'", '"', "=", ",", ":", "a", " ", "["]), max_size=8)


@pytest.mark.parametrize(
    "word",
    [
        *("env.V=1.10", "env.A=x=y", "env.A=a,b", "env.A=", "env.A=$(id)", "env.A=null", "env.A=choice", "name=1e3"),
        *("run_root=~/x", "secrets.K=~/.key", "cluster.constraint=a100&nvlink", "cluster.time=24:00:00"),
        "cluster.qos=no",
    ],
)
def test_text_arrives_as_typed(word: str) -> None:
    key, _, text = word.partition("=")
    override = parse(word)
    assert (override.key, override.values) == (key, (text,))


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("image=a:1,b:2", ("a:1", "b:2")),
        ("image=choice(a:1, b:2)", ("a:1", "b:2")),
        ("env.A=choice(1.10,no)", ("1.10", "no")),
        ('env.A=choice("0,1",0)', ("0,1", "0")),
        ("amp=o0,o1,o2", ("o0", "o1", "o2")),
        ("recipe=mnist,gan", ("mnist", "gan")),
        ("data=digits,null", ("digits", None)),
        ("batch=128,256", (128, 256)),
        ("seed=range(0,3)", (0, 1, 2)),
        ("seed=range(5,0,-2)", (5, 3, 1)),
        ("loss_scale.init=range(0,0.3,0.1)", (0.0, 0.1, 0.2)),
        ("proof.share=1e-3,2e-3", (1e-3, 2e-3)),
        ("visible_gpus=[0,2]", ([0, 2],)),
        ("amp.deny=[conv2d],[matmul,bmm]", (["conv2d"], ["matmul", "bmm"])),
        ("amp.deny=[a,'b, c'],[]", (["a", "b, c"], [])),
        ("amp.deny=choice([a],[b])", (["a"], ["b"])),
        ("checkpoint={every: 5, keep:2}", ({"every": 5, "keep": 2},)),
        ("env={A: 'x, y'}", ({"A": "x, y"},)),
        ("container.limits=null", (None,)),
        ("name=null", (None,)),
        ("tf32=null", (None,)),
    ],
)
def test_values_are_read_by_the_type_of_their_key_and_lists_of_them_sweep(
    word: str, values: tuple[object, ...]
) -> None:
    (override,) = read_values([parse(word)], "mnist")
    assert override.values == values


@pytest.mark.parametrize(
    "text",
    [
        *("[--nice=100]", "[export A=1]", "[~/a:/b]", "[a&b:/c]", "[export A='x, y',module load x]", "[a[0],f(b,c)]"),
        "[${x}]",
    ],
)
def test_items_of_lists_of_text_are_taken_as_typed(text: str) -> None:
    spec = spec_of("cluster=slurm", f"cluster.setup={text}")
    assert f"[{','.join(spec.launch.cluster.setup)}]" == text


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)))
def test_a_list_is_read_as_it_is_shown(items: list[str]) -> None:
    assert read(show(items), tuple[str, ...], "key") == items


@settings(max_examples=20)
@given(st.one_of(TEXT, NASTY.map("".join)))
def test_any_text_arrives_unevaluated(text: str) -> None:
    (cell,) = cells(COMPOSER, [parse(f"env.A={text}")])
    assert cell.config["env"] == {"A": text}
