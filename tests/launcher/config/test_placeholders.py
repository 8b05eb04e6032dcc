"""Sweeps of a script's arguments: `sweep.NAME` and the placeholders `{NAME}` after `--`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.__main__ import main
from launcher.config import request
from launcher.config.parse import parse
from launcher.config.placeholders import filled
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.plan.resolve import resolve
from launcher.probe.facts import Script
from launcher.runs.arms import label_of
from tests.launcher.config.conftest import Refusal
from tests.launcher.hosts import LAPTOP

TEXTS = st.lists(st.text("{}lrx\"'\\ $a:0", max_size=12), max_size=4)


pytestmark = pytest.mark.usefixtures("project")


def specs_of(*words: str) -> tuple[JobSpec, ...]:
    return request.to_specs(request.compose(request.split_flags(words, starts=True)))


def test_two_placeholders_are_a_run_for_each_combination() -> None:
    specs = specs_of(
        "train.py", "sweep.lr=0.1,0.01", "sweep.layers=2,4", "--", "--lr", "{lr}", "model.layers={layers}", "{lr}-{lr}"
    )
    assert [spec.launch.arguments for spec in specs] == [
        ("--lr", lr, f"model.layers={layers}", f"{lr}-{lr}") for lr in ("0.1", "0.01") for layers in "24"
    ]
    assert [label_of(spec.swept) for spec in specs][:2] == ["lr=0.1 layers=2", "lr=0.1 layers=4"]


def test_only_a_name_with_a_value_is_a_placeholder_and_values_are_not_read_again() -> None:
    typed = '{"a":{lr}} {epoch:02d} {{lr}} {other} {{other}} {} {lr {{lr} {lr}} {x}'
    filled_in = '{"a":{x}} {epoch:02d} {lr} {other} {{other}} {} {lr {{x} {x}} {lr}'
    (spec,) = specs_of("train.py", "sweep.lr='{x}'", "sweep.x={lr}", "--", *typed.split())
    assert spec.launch.arguments == tuple(filled_in.split())
    assert spec.swept == ()


@given(TEXTS)
def test_without_a_value_every_argument_passes_as_it_is(arguments: list[str]) -> None:
    assert filled(arguments, {}) == tuple(arguments)


@given(TEXTS, st.text("{}lrx$", max_size=6))
def test_a_value_replaces_its_placeholder_once(arguments: list[str], value: str) -> None:
    made = filled([*arguments, "{lr}"], {"lr": value})
    assert made[-1] == value
    assert [new for old, new in zip(arguments, made, strict=False) if "{lr}" not in old] == [
        argument for argument in arguments if "{lr}" not in argument
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1", ("0.1",)),
        ("1e-3,1.10", ("1e-3", "1.10")),
        ("true,null", ("true", "null")),
        ("'a,b',c", ("a,b", "c")),
        ('choice("a,b",c)', ("a,b", "c")),
        ("[1,2],[3]", ("[1,2]", "[3]")),
        ('{"a":1,"b":2}', ('{"a":1,"b":2}',)),
        ("range(0,3)", ("0", "1", "2")),
        ("a=b,~/x,${oc.env:HOME}", ("a=b", "~/x", "${oc.env:HOME}")),
        ('""', ("",)),
    ],
)
def test_values_are_texts_as_they_are_typed(text: str, values: tuple[str, ...]) -> None:
    assert parse(f"sweep.x={text}").values == values
    assert [spec.launch.arguments for spec in specs_of("train.py", f"sweep.x={text}", "--", "{x}")] == [
        (value,) for value in values
    ]


REFUSED = {
    "train.py sweep.lr=0.1": "sweep.lr: no argument of the script has {lr}, as in -- --lr {lr} (command line)",
    "train.py sweep.lrr=1,2 -- --lr {lr}": "did you mean sweep.lr?",
    "train.py sweep.batch=1 -- {lr} {n}": "has {batch}, as in -- --batch {batch}; there are {lr}, {n}",
    "train.py sweep.lr=1 -- {{lr}}": "no argument of the script has {lr}",
    "sweep.lr=1,2": "sweep.lr=1 is for a script, and this is recipe=mnist",
    "train.py sweep.lr= -- {lr}": "sweep.lr= lists no value; say one, or several as a,b",
    "train.py sweep.lr=1,,2 -- {lr}": "sweep.lr=1,,2: the list has an empty item",
    "train.py sweep.lr=a[b -- {lr}": "quote an item that holds an odd one",
    "train.py sweep.lr=1,1 -- {lr}": "has the cell sweep.lr=1 twice",
    "train.py sweep.a.b=1 -- {a.b}": "the name of a placeholder should be of letters, digits, - and _",
    "train.py sweep.lr -- {lr}": "sweep.lr is a key and needs a value: sweep.lr=...",
    "train.py sweep=3 -- {lr}": "sweep=3 should be a mapping",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_sweep_without_a_placeholder_is_refused_and_leaves_no_files(
    words: str, project: Path, refusal: Refusal
) -> None:
    assert REFUSED[words] in refusal(*words.split())
    assert not (project.parent / "launcher-runs").exists()


def test_it_mixes_with_other_keys_and_with_swept_arguments() -> None:
    specs = specs_of("train.py", "amp=o0,o1", "sweep.lr=1,2", "arguments=[--a,{lr}],[--b,{lr}]")
    assert len(specs) == 8
    assert specs[-1].launch.arguments == ("--b", "2")
    with pytest.raises(UsageError, match=r"has \{lr\}.*arguments=\[--b\]"):
        specs_of("train.py", "sweep.lr=1", "arguments=[--a,{lr}],[--b]")


def test_a_file_may_give_a_value(project: Path) -> None:
    (project / "experiment").mkdir()
    text = 'recipe: script\nscript: train.py\narguments: [--lr, "{lr}"]\nsweep: {lr: "0.5"}\n'
    (project / "experiment" / "mine.yaml").write_text(text)
    (spec,) = specs_of("--config-dir", ".", "experiment=mine")
    assert spec.launch.arguments == ("--lr", "0.5")
    assert [spec.launch.arguments[1] for spec in specs_of("--config-dir", ".", "experiment=mine", "sweep.lr=1,2")] == [
        "1",
        "2",
    ]


def test_runs_are_named_by_their_swept_values() -> None:
    words = ("train.py", "sweep.lr=0.1,0.01", "sweep.data=/a b/c", "--", "--lr", "{lr}", "{data}")
    assert names_of(*words) == ["train-o1-lr0.1", "train-o1-lr0.01"]
    assert names_of("train.py", "sweep.lr=0.1", "--", "{lr}") == ["train-o1"]
    assert names_of("train.py", f"sweep.x={'a' * 80},/b c", "--", "{x}") == [f"train-o1-x{'a' * 50}", "train-o1-x-b-c"]


def names_of(*words: str) -> list[str]:
    facts = dataclasses.replace(LAPTOP, scripts={"train.py": Script(path="/train.py", name="script/train.py")})
    return [resolve(spec, facts).name for spec in specs_of(*words)]


def test_a_plan_shows_each_cell_and_the_typed_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "train.py", "amp=o0", "device=cpu", "sweep.lr=0.1,0.01", "--", "--lr={lr}"]) == 0
    screen = capsys.readouterr().out
    assert "train.py --lr=0.1 in torch" in screen
    assert "cell  lr\n0     0.1\n1     0.01\n" in screen
    assert "sweep: sweep.lr=0.1,0.01" in screen
