"""Two nodes of the real Slurm, on one of which nothing starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.launcher.slurm.bench import ended
from tests.launcher.slurm.submitted import Submitted, all_submitted
from tests.launcher.slurm.trainers import LONG, told
from tests.testbed.facts import Testbed

FRAMEWORKS = ("torch", "tensorflow")

# A Python that starts nothing on the second node. On the first one the trainer waits a shorter time than usual.
HALF = f"""\
#!/bin/sh
[ "${{SLURMD_NODENAME-}}" != n2 ] || exit 127
[ -n "${{SLURMD_NODENAME-}}" ] || exec {sys.executable} "$@"
exec {sys.executable} -c '
import runpy, sys
from recipes.trainer import rendezvous
rendezvous.PATIENCE = 2.0
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""


@pytest.fixture(scope="module")
def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    root = tmp_path_factory.mktemp("missing")
    (root / "python").write_text(HALF)
    (root / "python").chmod(0o700)
    job = (f"python={root / 'python'}", "nodes=2", "amp=o1", "data=digits", "batch=32", "steps=3")
    with all_submitted(testbed, root, {each: (f"framework={each}", *job) for each in FRAMEWORKS}) as found:
        yield found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_node_on_which_nothing_starts_fails_the_run_and_is_named(submitted: Submitted, framework: str) -> None:
    folder = submitted.folder(framework)
    assert ended(folder, LONG).name == "failed", told(folder)
    lines = (folder / "attempts/1/stderr.log").read_text().splitlines()
    (place,) = [number for number, line in enumerate(lines) if "worker 1 at " in line]
    assert lines[place].endswith("did not join within 2 s; 1 of 2 did")
    assert lines[place + 2].split()[:2] == ["0", "n1"]
    assert not (folder / "metrics.jsonl").exists()
