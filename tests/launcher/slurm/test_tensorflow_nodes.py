"""The real trainer in TensorFlow on two nodes of the real Slurm: one process on each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.runs import store
from tests.launcher.slurm.bench import ended
from tests.launcher.slurm.submitted import Submitted, all_submitted
from tests.launcher.slurm.trainers import LONG, ask_as_before_a_time_limit, saved, told
from tests.recipes.torch_.trainers import rows, steps
from tests.testbed.facts import Testbed

STEPS = 120
JOB = (
    "framework=tensorflow",
    "nodes=2",
    "amp=o1",
    "data=digits",
    "batch=32",
    f"steps={STEPS}",
    "checkpoint.every=10",
    "cluster.max_requeues=0",
)


@pytest.fixture(scope="module")
def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    root = tmp_path_factory.mktemp("tensorflow")
    with all_submitted(testbed, root, {"whole": JOB}) as found:
        yield found


@pytest.mark.slow
def test_before_their_time_limit_both_save_together_and_resumed_they_go_on_proved_on_both(submitted: Submitted) -> None:
    folder = submitted.folder("whole")
    saved(folder, 10)
    ask_as_before_a_time_limit(folder)
    assert ended(folder, LONG).name == "stopped", told(folder)
    submitted.launcher("resume", folder.name, f"run_root={folder.parent}")
    found = submitted.done("whole")
    assert (found["attempts"], found["world_size"]) == (2, 2)
    assert found["observed"]["verdict"] == "proved"
    assert found["observed"]["why"].endswith("on 2 ranks")
    stopped = store.read_or_empty(folder / "attempts/1/stopped.json")["step"]
    assert 0 < stopped < STEPS
    assert [row["resumed_from"] for row in rows(folder) if row.get("event") == "start"] == [None, stopped]
    assert [row["step"] for row in steps(folder)] == list(range(1, STEPS + 1))
    for attempt in (1, 2):
        lines = [line.split() for line in submitted.said("whole", attempt).splitlines()[:3]]
        assert lines[0] == ["rank", "host", "device", "GPU", "visible", "GPUs"]
        assert lines[1:] == [["0", "n1", "cpu", "-", "none"], ["1", "n2", "cpu", "-", "none"]]
