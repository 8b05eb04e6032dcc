"""Scripts of the user's own on the real Slurm, started as a user starts them.

All start together: most of what each takes is waiting.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.probe.slurm_commands import call
from launcher.runs.states import State
from tests.amp_launcher.torch.trainers import result, rows
from tests.launcher import warm
from tests.launcher.real_scripts import ENDLESS, FOLDER, goes_on, printed
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.launcher.slurm.submitted import Submitted, submitted_by
from tests.launcher.slurm.trainers import LATER, LONG, ask_as_before_a_time_limit, python

UNPROVED = ("require_proof=false", "amp=o0")
BARE = ("train.bare=true", *UNPROVED)

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
def asked(*_):
    print("rank", os.environ.get("RANK"), "asked on", os.environ["SLURMD_NODENAME"], flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, asked)
print("begun", flush=True)
time.sleep(3600)
"""

SCRIPTS = {
    "saves.py": SAVES,
    "ranks.py": RANKS,
    "workers.py": TENSORFLOW,
    "used.py": """\
import os, pathlib, sys, time, torch
saved = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "saved")
print("begun", flush=True)
if saved.exists():
    time.sleep(3600)
from amp_launcher import job
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while not job.should_stop():
    optimizer.zero_grad()
    (net(torch.ones(4, 8)) ** 2).mean().backward()
    optimizer.step()
    time.sleep(0.05)
    saved.with_name("trains").touch()
saved.touch()
""",
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
    "workers": ("script=workers.py", "amp=o2", "nodes=2", "framework=tensorflow"),
    "again": ("script=again.py", "workdir=run", *BARE),
    "limit": ("script=saves.py", *BARE, "cluster.time=2", "cluster.stop_before=55"),
    "used": ("script=used.py", "amp=o0", "cluster.max_requeues=1"),
    "unsaved": ("script=ranks.py", *UNPROVED, "nodes=2"),
    "bare": ("script=ranks.py", *BARE, "nodes=2"),
}
REAL = (
    *("script=plain.py", "amp=o1", "nodes=2", "env.PACE=0.2", f"cluster.setup=['{LATER}']"),
    *("script.resume_arguments=[--resume,auto,--steps=900]", "--", f"--steps={ENDLESS}"),
)


def requests(root: Path) -> dict[str, tuple[str, ...]]:
    for name, text in SCRIPTS.items():
        (root / name).write_text(text)
    shutil.copy(FOLDER / "plain.py", root)
    words = {name: ("recipe=script", f"python={warm.python()}", *words) for name, words in REQUESTS.items()}
    return {**words, "real": ("recipe=script", f"python={python(root, real=warm.python())}", *REAL)}


submitted = submitted_by(requests)


def begun(submitted: Submitted, name: str) -> State:
    log = submitted.folder(name) / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun" in log.read_text())
    return state(submitted.folder(name))


def test_stopped_before_its_time_limit_on_two_nodes_it_saves_and_goes_on(submitted: Submitted) -> None:
    folder = submitted.folder("real")  # first of all tests: it trains on meanwhile, in steps of 0.2 s
    until(lambda: len(printed(folder)) >= 5, LONG)
    ask_as_before_a_time_limit(folder)
    result = submitted.done("real")
    assert (result["attempts"], result["world_size"], result["observed"]["verdict"]) == (2, 2, "proved")
    assert result["mechanism"] == "autocast_around"
    assert goes_on(folder)
    assert submitted.output("real").count("amp=") == 2, "one rank prints for all"
    assert not list(folder.glob(".seen*"))


@pytest.mark.parametrize(("name", "code"), [("unsaved", 85), ("bare", 1)])
def test_two_ranks_that_saved_nothing_before_their_time_limit_are_both_asked_and_the_job_is_not_requeued(
    submitted: Submitted, name: str, code: int
) -> None:
    folder = submitted.folder(name)
    until(lambda: begun(submitted, name) and submitted.output(name).count("begun") == 2, LONG)
    ask_as_before_a_time_limit(folder)
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("stopped", 1)
    assert seen.reason == (
        "time limit; no checkpoint in LAUNCHER_CHECKPOINT_DIR; not requeued, as it would start over: save there, or "
        "set script.resume_arguments"
    )
    lines = sorted(line for line in submitted.output(name).splitlines() if line.startswith("rank"))
    assert lines == ["rank 0 asked on n1", "rank 1 asked on n2"]
    # The script ended with 0, but bare's torchrun with 1, and no job that is to come after this one may take that for a
    # success.
    until(lambda: f"ExitCode={code}:0" in call(["scontrol", "show", "job", job_of(folder)]).stdout)


def test_with_its_requeues_used_up_it_says_so_and_keeps_what_earlier_attempts_measured_and_proved(
    submitted: Submitted,
) -> None:
    folder = submitted.folder("used")
    until((folder / "checkpoints/trains").exists, LONG)
    until(lambda: len(rows(folder)) > 20, LONG)
    ask_as_before_a_time_limit(folder)
    second = folder / "attempts/2/stdout.log"
    until(lambda: second.exists() and "begun" in second.read_text(), LONG)
    ask_as_before_a_time_limit(folder)
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("stopped", 2)
    assert seen.reason == (
        "1 of 1 requeues used (cluster.max_requeues); time limit; checkpoint in LAUNCHER_CHECKPOINT_DIR"
    )
    measured = result(folder)
    assert (measured["attempts"], measured["observed"]["verdict"]) == (2, "proved")
    assert measured["steps"] > 20 and measured["throughput"]["mean"] > 0


def test_a_real_time_limit_lets_it_save_and_go_on(submitted: Submitted) -> None:
    seen = ended(submitted.folder("limit"), LONG)
    assert (seen.name, seen.attempt) == ("done", 2)
    assert submitted.output("limit", 2).count("begun again") == 1


def test_requeued_it_begins_again_in_its_own_folder(submitted: Submitted) -> None:
    folder = submitted.folder("again")
    begun(submitted, "again")
    assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("done", 2)
    assert (
        submitted.output("again") + submitted.output("again", 2)
        == "begun 1 times, attempt 1\nbegun 2 times, attempt 2\n"
    )


def test_on_two_nodes_workers_of_tensorflow_meet_and_each_is_judged(submitted: Submitted) -> None:
    result = submitted.done("workers")
    assert (result["observed"]["verdict"], result["world_size"]) == ("proved", 2)
    assert "on 2 ranks" in result["observed"]["why"]
    lines = [line for line in submitted.output("workers").splitlines() if line.startswith("worker")]
    assert sorted(lines) == ["worker 0 of 2 on n1", "worker 1 of 2 on n2"]
