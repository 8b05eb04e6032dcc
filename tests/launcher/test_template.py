"""Users' text in scripts of ours: it is never read for places to fill in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import launcher
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts, Script
from launcher.script.interactive import script as shell_script
from launcher.script.render import render
from launcher.template import fill
from recipes.script import Source
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of
from tests.launcher.slurm.test_text import LOGIN

# Every place in a text of ours, and those that there were when a user's text could be taken for one.
PLACES = sorted(
    {
        found
        for path in Path(launcher.__path__[0]).rglob("*.py")
        for found in re.findall(r"__[A-Z]+(?:_[A-Z]+)*__", path.read_text(encoding="utf-8"))
    }
    | {"__STOP__", "__SAMPLE__", "__COMMAND__", "__OUTCOME__", "__REMOVE__", "__MAX_REQUEUES__", "__IDS__", "RUN_ID"}
)
# Of the same letters and needing the same quotes, but no place.
NOTHING = [each.lower() for each in PLACES]


def test_what_a_value_holds_is_not_filled() -> None:
    assert fill("a __ONE__ b __TWO__", one="__TWO__", two="__ONE__") == "a __TWO__ b __ONE__"


def test_a_line_without_a_value_goes_as_a_whole() -> None:
    assert fill("a\n  __ONE__\nb\n__TWO__", one="", two="") == "a\nb"
    assert fill("a\n  __ONE__\nb__TWO__", one="x", two="") == "a\n  x\nb"


def _plan(facts: Facts, words: tuple[str, ...], texts: list[str]) -> Plan:
    """A script of a user whose arguments, environment and folders hold the texts."""
    root = f"/runs/{'/'.join(texts)}"
    found = dataclasses.replace(
        facts,
        run_root=root,
        scripts={"train.py": Script(path="/home/mei/train.py", name="script/train.py", source=Source())},
    )
    spec = spec_of("recipe=script", "script=train.py", "amp=o1", *words)
    launch = dataclasses.replace(spec.launch, arguments=("--tag", *texts), env={"TAGS": " ".join(texts)})
    return resolve(dataclasses.replace(spec, launch=launch), found)


def _run(plan: Plan) -> str:
    return render(plan.bind("20260102-030405-calm-fox"))


def _shell(plan: Plan) -> str:
    return shell_script(plan, token="abc", attempt=None, port=(6006, 6006))


DOCKER = ("container=docker", "image=nvcr.io/nvidia/pytorch:25.06-py3")


@pytest.mark.parametrize("rendered", [_run, _shell])
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (LAPTOP, ()),
        (LAPTOP, ("amp=o0", "telemetry.every=0", "train.bare=true", "require_proof=false")),
        (TWO_A100, ("gpus=1",)),
        (with_containers(TWO_A100, image="nvcr.io/nvidia/pytorch:25.06-py3"), DOCKER),
        (LOGIN, ("cluster=slurm", "gpus=1")),
        (LOGIN, ("cluster=slurm", "nodes=2", "gpus=2", "train.processes=2")),
        (with_containers(LOGIN, image="nvcr.io/nvidia/pytorch:25.06-py3"), ("cluster=slurm", "gpus=1", *DOCKER)),
        (
            with_containers(LOGIN, image="nvcr.io/nvidia/pytorch:25.06-py3"),
            ("cluster=slurm", "nodes=2", "gpus=1", *DOCKER),
        ),
    ],
    ids=["here", "bare", "free GPUs", "docker", "slurm", "nodes", "docker under Slurm", "docker on nodes"],
)
def test_places_in_users_text_are_text(facts: Facts, words: tuple[str, ...], rendered: Callable[[Plan], str]) -> None:
    expected = rendered(_plan(facts, words, NOTHING))
    for place, nothing in zip(PLACES, NOTHING, strict=True):
        expected = expected.replace(nothing, place)
    assert rendered(_plan(facts, words, PLACES)) == expected
