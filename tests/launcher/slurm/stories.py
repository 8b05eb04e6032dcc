"""Tests that mostly wait for Slurm, run at the same time.

A story is a test as a plain function, whose parameters are named as fixtures are. A module runs its selected stories
in one fixture, and has one parametrized test that asks for the outcome of each.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.executors import backends
from launcher.runs import selection, store
from tests.testbed.facts import Testbed

Story = Callable[..., None]
Stage = Callable[[str], contextlib.AbstractContextManager[Mapping[str, Any]]]
"""Makes what the story of that name may ask for, by the names of its parameters."""
Outcomes = Mapping[Story, "Future[None]"]


def outcomes(request: pytest.FixtureRequest, stage: Stage) -> Outcomes:
    """What became of the module's selected stories, once all have ended."""
    items = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    parameters: list[Mapping[str, Any]] = [item.callspec.params for item in items if hasattr(item, "callspec")]
    chosen = dict.fromkeys(given["story"] for given in parameters if "story" in given)

    def play(story: Story) -> None:
        with stage(story.__name__) as made:
            story(**{name: made[name] for name in inspect.signature(story).parameters})

    with ThreadPoolExecutor(len(chosen)) as pool:
        return {story: pool.submit(play, story) for story in chosen}


@contextlib.contextmanager
def cluster_of(testbed: Testbed, folder: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own, with a state folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_JOB", "SLURM_ARRAY", "SBATCH_"))]:
            patch.delenv(name)
        for name, value in {**testbed.environment, "XDG_STATE_HOME": str(folder / "state")}.items():
            patch.setenv(name, value)
        yield testbed


def end_all(root: Path) -> None:
    """Cancel the jobs of a run root."""
    runs = selection.newest([str(root)], 10_000)
    backends.end({str(run.folder): store.load(str(run.folder)) for run in runs}, 0)
