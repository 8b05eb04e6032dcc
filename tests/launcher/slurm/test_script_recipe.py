"""Scripts of the user's own on the real Slurm, started as a user starts them.

All start together: most of what each takes is waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launcher import runs
from launcher.slurm.commands import call
from launcher.states import State
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.testbed.facts import Testbed

CHECKOUT = str(Path(__file__).parents[3])
BARE = ("train.bare=true", "require_proof=false", "amp=o0")

TORCH = """\
import os, sys
import torch
from torch import distributed, nn
net = nn.Linear(16, 16)
rank, size = 0, int(os.environ.get("WORLD_SIZE", "1"))
if size > 1:
    distributed.init_process_group("gloo")
    net, rank = nn.parallel.DistributedDataParallel(net), distributed.get_rank()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    (net(torch.ones(4, 16)) ** 2).mean().backward()
    optimizer.step()
print("rank", rank, "of", size, "on", os.environ["SLURMD_NODENAME"], "told", sys.argv[1:])
"""

TENSORFLOW = """\
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # refused once TensorFlow has begun to compute
import keras
with strategy.scope():
    net = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(net.trainable_variables)

@tf.function
def step():
    def on_one_worker():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(net(tf.ones((4, 16))), tf.float32) ** 2)
        optimizer.apply(tape.gradient(loss, net.trainable_variables))
    strategy.run(on_one_worker)

for _ in range(3):
    step()
worker, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
print("worker", worker, "of", size, "on", os.environ["SLURMD_NODENAME"])
"""

SCRIPTS = {
    "train.py": TORCH,
    "workers.py": TENSORFLOW,
    "fails.py": "raise SystemExit(3)",
    "long.py": "import time\nprint('begun', flush=True)\ntime.sleep(300)",
    "again.py": """\
import os, pathlib, time
saved = pathlib.Path("saved")
begun = int(saved.read_text()) + 1 if saved.exists() else 1
saved.write_text(str(begun))
print("begun", begun, "times, attempt", os.environ["LAUNCHER_ATTEMPT"], flush=True)
if begun == 1:
    time.sleep(300)
""",
}

REQUESTS = {
    "alone": ("script=train.py", "amp=o1", "--", "a", "b c", "--x=1"),
    "nodes": ("script=train.py", "amp=o1", "nodes=2"),
    "workers": ("script=workers.py", "amp=o2", "nodes=2", "framework=tensorflow"),
    "fails": ("script=fails.py", *BARE),
    "long": ("script=long.py", *BARE),
    "again": ("script=again.py", "workdir=run", *BARE),
}


class Submitted(NamedTuple):
    """What was launched, by its name in `REQUESTS`."""

    root: Path
    environment: Mapping[str, str]

    def launcher(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", *words]
        return subprocess.run(
            argv, cwd=self.root, env=self.environment, capture_output=True, text=True, check=True, timeout=60
        )

    def folder(self, name: str) -> Path:
        (found,) = [each for each in (self.root / name).iterdir() if (each / "plan.json").exists()]
        return found

    def said(self, name: str, attempt: int = 1) -> str:
        return (self.folder(name) / f"attempts/{attempt}/stdout.log").read_text()

    def done(self, name: str) -> dict[str, Any]:
        """The result of one that is to end well."""
        folder = self.folder(name)
        seen = ended(folder, 180)
        logs = "".join(each.read_text() for each in folder.glob("attempts/*/stderr.log"))
        assert seen.name == "done", (seen, logs[-2000:])
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


@pytest.fixture(scope="module")
def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    root = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (root / name).write_text(text)
    own = {"PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(root / "state")}
    found = Submitted(root, testbed.slurm_env(own))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in testbed.environment.items():
            patch.setenv(name, value)
        for name, words in REQUESTS.items():
            more = (f"run_root={root / name}", "recipe=script", "cluster=slurm", "gpus=0", "telemetry.every=0")
            found.launcher(*more, "env.OMP_NUM_THREADS=1", *words)
        yield found
        call(["scancel", "--quiet", *(job_of(found.folder(name)) for name in REQUESTS)])


def begun(submitted: Submitted, name: str) -> State:
    log = submitted.folder(name) / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun" in log.read_text())
    return state(submitted.folder(name))


def test_cancelled_it_is_ended_at_once_and_told_so(submitted: Submitted) -> None:
    assert begun(submitted, "long").name == "running"
    submitted.launcher("cancel", submitted.folder("long").name, f"run_root={submitted.root / 'long'}")
    assert ended(submitted.folder("long"), 30).name == "cancelled"


def test_requeued_it_begins_again_in_its_own_folder(submitted: Submitted) -> None:
    folder = submitted.folder("again")
    begun(submitted, "again")
    assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
    seen = ended(folder, 180)
    assert (seen.name, seen.attempt) == ("done", 2)
    assert (
        submitted.said("again") + submitted.said("again", 2) == "begun 1 times, attempt 1\nbegun 2 times, attempt 2\n"
    )


def test_its_own_exit_code_is_told(submitted: Submitted) -> None:
    seen = ended(submitted.folder("fails"), 60)
    assert (seen.name, seen.reason) == ("failed", "the script ended with exit code 3")
    assert runs.read_if_whole(submitted.folder("fails") / "status.json")["exit_code"] == 3


def test_it_is_proved_and_its_arguments_reach_it_untouched(submitted: Submitted) -> None:
    found = submitted.done("alone")
    assert (found["observed"]["verdict"], found["mechanism"]) == ("proved", "autocast_around")
    assert "rank 0 of 1 on " in submitted.said("alone")
    assert "told ['a', 'b c', '--x=1']" in submitted.said("alone")


@pytest.mark.parametrize(("name", "each"), [("nodes", "rank"), ("workers", "worker")])
def test_on_two_nodes_its_processes_meet_and_each_is_judged(submitted: Submitted, name: str, each: str) -> None:
    found = submitted.done(name)
    assert (found["observed"]["verdict"], found["world_size"]) == ("proved", 2)
    assert found["observed"]["why"].endswith("on 2 ranks")
    lines = [line.partition(" told")[0] for line in submitted.said(name).splitlines() if line.startswith(each)]
    assert sorted(lines) == [f"{each} 0 of 2 on n1", f"{each} 1 of 2 on n2"]
    assert submitted.said(name).count("amp=") == 2, "one process speaks for all"
    assert not [left for left in os.listdir(submitted.folder(name)) if left.startswith(".seen")]
