"""plan.json with values of other types: refused in one line, or without harm."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.errors import LauncherError
from launcher.executors.plan_changes import changes
from launcher.plan.record import from_json, to_json
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.script.render import render
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import TWO_A100, spec_of
from tests.launcher.slurm.test_text import LOGIN

JUNK = (None, -1, "x", [[]], {"x": {}})
IMAGE = "nvcr.io/nvidia/pytorch:25.06-py3"
CASES: dict[str, tuple[Facts, tuple[str, ...]]] = {
    "here": (TWO_A100, ("gpus=1", "env.A=b", "secrets.KEY=~/.key")),
    "docker": (with_containers(TWO_A100, image=IMAGE), ("container=docker", f"image={IMAGE}", "mounts=[/a:/b]")),
    "slurm": (LOGIN, ("cluster=slurm", "nodes=2", "gpus=1", "cluster.setup=[module load x]")),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield (*path, name)
        yield from places(item, (*path, name))


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_another_type_is_refused_or_does_no_harm(name: str) -> None:
    facts, words = CASES[name]
    plan = json.loads(json.dumps(to_json(resolve(spec_of(*words), facts).bind("20260102-030405-calm-fox"))))
    refused = 0
    for path in places(plan):
        for junk in JUNK:
            values = copy.deepcopy(plan)
            functools.reduce(operator.getitem, path[:-1], values)[path[-1]] = junk
            try:
                render(changes(from_json(values), {"require_proof": "false"}))
            except LauncherError as error:
                assert error.exit_code == 2, (path, junk)
                assert "\n" not in str(error), (path, junk)
                refused += 1
            except Exception as error:
                raise AssertionError(f"{path} = {junk!r}") from error
    assert refused > 200
    with pytest.raises(LauncherError, match="nodes=-1 is no plan's"):
        from_json({**plan, "nodes": -1})
