"""Scripts of the user's own on the real Slurm, started as a user starts them.

All start together: most of what each takes is waiting.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.states import State
from tests.launcher import warm
from tests.launcher.real_scripts import ENDLESS, FOLDER, goes_on, printed
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.launcher.slurm.submitted import Submitted, all_submitted
from tests.launcher.slurm.trainers import LATER, LONG, ask_as_before_a_time_limit, python
from tests.testbed.facts import Testbed

UNPROVED = ("require_proof=false", "amp=o0")
BARE = ("train.bare=true", *UNPROVED)

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

SAVES = """\
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "saved")
def save(*_):
    saved.touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("begun", "again" if saved.exists() else "", flush=True)
if not saved.exists():
    time.sleep(3600)
"""

RANKS = """\
import os, signal, sys, time
def told(*_):
    print("rank", os.environ.get("RANK"), "told on", os.environ["SLURMD_NODENAME"], flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, told)
print("begun", flush=True)
time.sleep(3600)
"""

SCRIPTS = {
    "saves.py": SAVES,
    "ranks.py": RANKS,
    "train.py": TORCH,
    "workers.py": TENSORFLOW,
    "fails.py": "raise SystemExit(3)",
    "tell.py": "import sys\nprint('told', sys.argv[1:])",
    "gpus.py": "import os\nprint('GPUs:', os.environ['SLURM_GPUS_ON_NODE'])",
    "long.py": "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    "print('begun', flush=True)\ntime.sleep(3600)",
    "again.py": """\
import os, pathlib, time
saved = pathlib.Path("saved")
begun = int(saved.read_text()) + 1 if saved.exists() else 1
saved.write_text(str(begun))
print("begun", begun, "times, attempt", os.environ["LAUNCHER_ATTEMPT"], flush=True)
if begun == 1:
    time.sleep(3600)
""",
}

REQUESTS = {
    "nodes": ("script=train.py", "amp=o1", "nodes=2", "--", "a", "b c", "--x=1"),
    "workers": ("script=workers.py", "amp=o2", "nodes=2", "framework=tensorflow"),
    "fails": ("script=fails.py", *BARE),
    "long": ("script=long.py", *BARE),
    "gpus": ("script=gpus.py", "gpus=auto", *BARE),
    "again": ("script=again.py", "workdir=run", *BARE),
    "limit": ("script=saves.py", *BARE, "cluster.time=1", "cluster.stop_before=15"),
    "unsaved": ("script=ranks.py", *UNPROVED, "nodes=2"),
}
REAL = (
    *("script=plain.py", "amp=o1", "nodes=2", "env.PACE=0.2", f"cluster.setup=['{LATER}']"),
    *("script.resume_arguments=[--resume,auto,--steps=900]", "--", f"--steps={ENDLESS}"),
)


@pytest.fixture(scope="module")
def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    root = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (root / name).write_text(text)
    shutil.copy(FOLDER / "plain.py", root)
    requests = {name: ("recipe=script", f"python={warm.python()}", *words) for name, words in REQUESTS.items()}
    requests["real"] = ("recipe=script", f"python={python(root, real=warm.python())}", *REAL)
    with all_submitted(testbed, root, requests) as found:
        yield found


def begun(submitted: Submitted, name: str) -> State:
    log = submitted.folder(name) / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun" in log.read_text())
    return state(submitted.folder(name))


def test_stopped_before_its_time_limit_on_two_nodes_it_saves_and_goes_on(submitted: Submitted) -> None:
    folder = submitted.folder("real")  # first of all tests: it trains on meanwhile, in steps of 0.2 s
    until(lambda: len(printed(folder)) >= 5, LONG)
    ask_as_before_a_time_limit(folder)
    found = submitted.done("real")
    assert (found["attempts"], found["world_size"], found["observed"]["verdict"]) == (2, 2, "proved")
    assert goes_on(folder)


def test_a_cancelled_script_ends_at_once_and_is_shown_as_cancelled(submitted: Submitted) -> None:
    assert begun(submitted, "long").name == "running"
    submitted.launcher("cancel", submitted.folder("long").name, f"run_root={submitted.root / 'long'}")
    assert ended(submitted.folder("long"), LONG).name == "cancelled"
    until(lambda: "ExitCode=85:0" in call(["scontrol", "show", "job", job_of(submitted.folder("long"))]).stdout)


def test_two_ranks_that_saved_nothing_before_their_time_limit_are_both_asked_and_the_job_is_not_requeued(
    submitted: Submitted,
) -> None:
    folder = submitted.folder("unsaved")
    until(lambda: begun(submitted, "unsaved") and submitted.said("unsaved").count("begun") == 2, LONG)
    ask_as_before_a_time_limit(folder)
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("stopped", 1)
    assert seen.reason == (
        "time limit; not requeued, as it would start over: save in LAUNCHER_CHECKPOINT_DIR, or set "
        "script.resume_arguments"
    )
    lines = sorted(line for line in submitted.said("unsaved").splitlines() if line.startswith("rank"))
    assert lines == ["rank 0 told on n1", "rank 1 told on n2"]
    # The script ended with 0, and no job that is to come after this one may take that for a success.
    until(lambda: "ExitCode=85:0" in call(["scontrol", "show", "job", job_of(folder)]).stdout)


def test_a_real_time_limit_lets_it_save_and_go_on(submitted: Submitted) -> None:
    seen = ended(submitted.folder("limit"), LONG)
    assert (seen.name, seen.attempt) == ("done", 2)
    assert submitted.said("limit", 2).count("begun again") == 1


def test_requeued_it_begins_again_in_its_own_folder(submitted: Submitted) -> None:
    folder = submitted.folder("again")
    begun(submitted, "again")
    assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("done", 2)
    assert (
        submitted.said("again") + submitted.said("again", 2) == "begun 1 times, attempt 1\nbegun 2 times, attempt 2\n"
    )


def test_without_a_number_it_gets_one_gpu_of_its_node(submitted: Submitted) -> None:
    assert ended(submitted.folder("gpus"), LONG).name == "done"
    assert "GPUs: 1\n" in submitted.said("gpus")


def test_each_cell_of_an_array_has_its_own_arguments(submitted: Submitted) -> None:
    root = submitted.root / "cells"
    words = ("tell.py", *BARE, f"run_root={root}", "cluster=slurm", "gpus=0", "telemetry.every=0", "sweep.lr=0.1,0.01")
    submitted.launcher(*words, "--", "--lr={lr}", "{epoch:02d}", "$lr")
    folders = sorted(folder for folder in root.iterdir() if (folder / "plan.json").exists())
    assert [ended(folder, LONG).name for folder in folders] == ["done", "done"]
    assert [(folder / "attempts/1/stdout.log").read_text() for folder in folders] == [
        "told ['--lr=0.1', '{epoch:02d}', '$lr']\n",
        "told ['--lr=0.01', '{epoch:02d}', '$lr']\n",
    ]
    assert len({job_of(folder).partition("_")[0] for folder in folders}) == 1


def test_the_trainers_own_exit_code_is_shown(submitted: Submitted) -> None:
    seen = ended(submitted.folder("fails"), LONG)
    assert (seen.name, seen.reason) == ("failed", "the script ended with exit code 3")
    assert store.read_or_empty(submitted.folder("fails") / "status.json")["exit_code"] == 3


@pytest.mark.parametrize(("name", "each"), [("nodes", "rank"), ("workers", "worker")])
def test_on_two_nodes_its_processes_meet_and_each_is_judged(submitted: Submitted, name: str, each: str) -> None:
    found = submitted.done(name)
    if name == "nodes":
        assert found["mechanism"] == "autocast_around"
        assert submitted.said(name).count("told ['a', 'b c', '--x=1']") == 2
    assert (found["observed"]["verdict"], found["world_size"]) == ("proved", 2)
    assert "on 2 ranks" in found["observed"]["why"]
    lines = [line.partition(" told")[0] for line in submitted.said(name).splitlines() if line.startswith(each)]
    assert sorted(lines) == [f"{each} 0 of 2 on n1", f"{each} 1 of 2 on n2"]
    assert submitted.said(name).count("amp=") == 2, "one process speaks for all"
    assert not [left for left in os.listdir(submitted.folder(name)) if left.startswith(".seen")]
