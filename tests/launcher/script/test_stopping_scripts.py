"""Scripts of the user's own that are asked to stop: real runs, real signals in each rank, and what is left of them.

All start together: most of what each takes is loading torch. They wait between steps, as the first one runs until the
last one was asked.
"""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from amp_launcher import metrics
from launcher.executors import stopping
from launcher.runs.store import Run
from tests.launcher import warm
from tests.launcher.run_folders import called, state, until

TORCH = """\
import os, signal, sys, time
import torch
from torch import distributed, nn
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def train(network):
    optimizer.zero_grad()
    (network(torch.ones(4, 8)) ** 2).mean().backward()
    optimizer.step()
"""
SAVING = """\
saved = os.path.join(os.environ["LAUNCHER_CHECKPOINT_DIR"], "last.pt")
if os.path.exists(saved):
    print("went on after", torch.load(saved)["step"], flush=True)
names = ("LAUNCHER_RUN_ID", "LAUNCHER_ATTEMPT", "WANDB_RUN_ID", "WANDB_RESUME")
print("started with", sys.argv[1:], [os.environ.get(name) for name in names], flush=True)
signals = []
signal.signal(getattr(signal, sys.argv[1]), lambda number, frame: signals.append(number))
step = 0
while not signals:
    train(net)
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
torch.save({"step": step}, saved)
print("saved", step, flush=True)
"""
RANKS = """\
from amp_launcher import job
distributed.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
step = 0
while not job.should_stop():
    train(net)
    step += 1
    if step == 1:
        print("begun", flush=True)
    time.sleep(0.1)
(job.checkpoint_dir() / f"rank{distributed.get_rank()}").write_text(str(step))
distributed.barrier()
"""
STEPPING = """\
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(1, 10**9):
    train(net)
    with open("steps", "w") as file:
        file.write(str(step))
    if step == 30:
        print("begun", flush=True)
    time.sleep(0.02 if step < 30 else 0.1)
"""
WAIT = "print('begun', sys.argv[1:], os.environ['LAUNCHER_CHECKPOINT_DIR'], flush=True)\ntime.sleep(3600)\n"
LEFT = "signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ['RANK'] == '1' else lambda *_: sys.exit())\n"
FAILS = """\
def save(*_):
    raise OSError("no room")
signal.signal(signal.SIGTERM, save)
"""
CAUGHT = """\
try:
    print('begun', flush=True)
    time.sleep(3600)
except KeyboardInterrupt:
    print('cleaned up', flush=True)
"""
KERAS = """\
import keras, numpy, os, time
def begun(epoch, logs):
    print("begun", flush=True)
    time.sleep(0.2)
net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
net.compile(optimizer="sgd", loss="mse")
begun = keras.callbacks.LambdaCallback(on_epoch_end=begun)
ones, kept = numpy.ones((64, 8)), keras.callbacks.BackupAndRestore(os.environ["LAUNCHER_CHECKPOINT_DIR"])
net.fit(ones, ones, epochs=10**6, verbose=0, callbacks=[begun, kept])
"""
WITHOUT_TORCH = "import os, signal, sys, time\n"
SCRIPTS = {
    "saving.py": TORCH + SAVING,
    "ranks.py": TORCH + RANKS,
    "stepping.py": TORCH + STEPPING,
    "left.py": f"{WITHOUT_TORCH}{LEFT}{WAIT}",
    "outside.py": f"{WITHOUT_TORCH}signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n{WAIT}",
    "alone.py": f"{WITHOUT_TORCH}signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended by itself'))\n{WAIT}",
    "failing.py": f"{WITHOUT_TORCH}{FAILS}{WAIT}",
    "waiting.py": f"{WITHOUT_TORCH}{WAIT}",
    "fit.py": KERAS,
    "caught.py": f"{WITHOUT_TORCH}{CAUGHT}",
}
REQUESTS = {
    "saving": (
        *("script=saving.py", "script.stop_signal=USR2", "script.resume_arguments=[--resume,auto]"),
        *("env.WANDB_MODE=offline", "--", "SIGUSR2"),
    ),
    "ranks": ("script=ranks.py", "train.processes=2"),
    "left": ("script=left.py", "train.processes=2", "cluster.stop_before=8"),
    "outside": ("script=outside.py", "train.bare=true"),
    "waiting": ("script=caught.py", "script.stop_signal=INT"),
    "failing": ("script=failing.py",),
    "alone": ("script=alone.py", "train.bare=true", "script.resume_arguments=[again, 'and again']"),
    "stepping": ("script=stepping.py", "workdir=run"),
    "fit": ("script=fit.py", "framework=tensorflow"),
    "deaf": ("script=stepping.py", "workdir=run", "cluster.stop_before=5", "--", "deaf"),
    "unasked": ("script=saving.py", "script.stop_signal=null", "--", "SIGTERM"),
    "plain": ("script=waiting.py", "train.bare=true"),
    "never": ("script=waiting.py", "script.stop_signal=null", "train.bare=true"),
}
CHECKOUT = str(Path(__file__).parents[3])


class Started:
    """The runs, each in a root of its own, as a user starts them."""

    def __init__(self, top):
        self._top = top

    def start(self):
        for name, text in SCRIPTS.items():
            (self._top / name).write_text(text)
        for name, words in REQUESTS.items():
            fixed = ("recipe=script", "amp=o0", "gpus=0", "require_proof=false", "telemetry.every=0", "detach=true")
            self.launcher(*fixed, f"python={warm.python()}", f"run_root={self._top / name}", *words)
        for name in REQUESTS:
            until(lambda name=name: "step" in self.log(name) or "begun" in self.log(name), 240)

    def launcher(self, *words):
        done = called(*words, cwd=self._top, PYTHONPATH=CHECKOUT, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def type(self, verb, name, *words):
        """A command about a run."""
        folder = self.folder(name)
        return self.launcher(verb, folder.name, f"run_root={folder.parent}", *words)

    def folder(self, name):
        return self.folders(name)[0]

    def folders(self, name):
        return list((self._top / name).glob("2*"))

    def log(self, name, attempt=1, stream="stdout"):
        path = self.folder(name) / "attempts" / str(attempt) / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def asked_to_stop(self, name):
        """As Ctrl-C in the foreground does."""
        stopping.request_stop(self.folder(name))
        return self.ended(name)

    def ended(self, name):
        until(lambda: state(self.folder(name)).finished, 120)
        return state(self.folder(name))

    def record(self, name, path):
        return json.loads((self.folder(name) / path).read_text())


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    runs = Started(tmp_path_factory.mktemp("scripts"))
    try:
        runs.start()
        yield runs
    finally:
        stopping.kill_all([folder for name in REQUESTS for folder in runs.folders(name)])


def test_a_script_saves_and_ends_by_itself_and_resumes_with_its_resume_arguments(started):
    assert started.asked_to_stop("saving").name == "stopped"
    folder = started.folder("saving")
    (saved,) = (line for line in started.log("saving").splitlines() if line.startswith("saved "))
    assert f"started with ['SIGUSR2'] {[folder.name, '1', folder.name, 'allow']}" in started.log("saving")
    assert started.record("saving", "result.json")["status"] == "stopped"
    assert stat.S_IMODE((folder / "checkpoints").stat().st_mode) == 0o700
    assert not (folder / "STOP").exists()
    started.type("resume", "saving", "detach=true")
    until(lambda: "step" in started.log("saving", 2), 120)
    assert f"went on after {saved.removeprefix('saved ')}\n" in started.log("saving", 2)
    words = ["SIGUSR2", "--resume", "auto"]
    assert f"started with {words} {[folder.name, '2', folder.name, 'allow']}" in started.log("saving", 2)
    printed = started.type("cancel", "saving")
    assert "cancelled after" in printed and "on request" in printed
    assert "saved " in started.log("saving", 2)


def test_the_signal_interrupts_a_script_that_waits(started):
    waiting = started.asked_to_stop("waiting")
    assert (waiting.name, waiting.reason) == ("stopped", "on request")
    assert "cleaned up" in started.log("waiting"), "INT is a KeyboardInterrupt"


def test_ranks_that_call_should_stop_stop_at_the_same_step_without_a_signal(started):
    assert started.asked_to_stop("ranks").name == "stopped"
    steps = [(started.folder("ranks") / f"checkpoints/rank{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1] and int(steps[0]) > 1
    assert "SIGTERM" not in started.log("ranks", stream="stderr")
    assert started.record("ranks", "status.json")["exit_code"] == 0


def test_one_that_no_signal_asks_is_cancelled_although_it_ends_with_exit_code_0(started):
    folder = started.folder("unasked")
    stopping.cancel([Run(str(folder.parent), folder.name)])
    assert (folder / "checkpoints/last.pt").exists()
    assert started.ended("unasked").name == "cancelled"


def test_a_rank_that_does_not_end_is_killed_and_named(started):
    until(lambda: started.log("left").count("begun") == 2)
    ended = started.asked_to_stop("left")
    assert ended.name == "stopped"
    assert ended.reason == "a rank of the script did not end within 5 s of SIGTERM and was killed"


def test_a_script_signalled_from_outside_is_not_done_even_with_exit_code_0(started):
    os.kill(started.record("outside", "status.json")["process"]["pid"], signal.SIGTERM)
    ended = started.ended("outside")
    assert (ended.name, ended.reason, ended.exit_code) == ("failed", "ended by a signal from outside", 0)


@pytest.mark.parametrize(
    ("name", "ends", "reason"),
    [
        ("stepping", "stopped", "on request"),
        ("deaf", "failed", "the script did not end within 2.5 s of SIGTERM and was killed"),
    ],
)
def test_one_that_the_signal_or_a_kill_ends_leaves_its_last_rows_and_a_result(started, name, ends, reason):
    ended = started.asked_to_stop(name)
    assert (ended.name, ended.reason) == (ends, reason)
    if name == "stepping":
        assert ended.exit_code == 143
        assert "SIGTERM ends it, as it has no handler" in started.log(name, stream="stderr")
    last_step = int((started.folder(name) / "work/steps").read_text())
    result = started.record(name, "result.json")
    assert (result["status"], result["observed"]["verdict"]) == ("stopped", "proved")
    assert result["throughput"]["unit"] == "steps/s" and result["throughput"]["mean"] > 0
    rows = [row for row in metrics.read(started.folder(name) / "metrics.jsonl") if "event" not in row]
    assert [row["step"] for row in rows] == list(range(1, result["steps"] + 1))
    assert 0 <= last_step - result["steps"] <= 1


def test_the_proof_of_a_script_that_fails_while_it_stops_says_that_it_was_asked_to(started):
    assert (started.asked_to_stop("failing").reason) == "OSError: no room"
    why = "the script failed when it was asked to stop"
    assert started.record("failing", "result.json")["observed"] == {"verdict": "unknown", "why": why}


def test_the_proof_of_a_keras_script_that_the_signal_ends_says_so(started):
    assert started.asked_to_stop("fit").name == "stopped"
    result = started.record("fit", "result.json")
    assert result["steps"] > 0
    reason = "SIGTERM ended the script before its steps were judged"
    assert (result["observed"]["verdict"], result["observed"]["why"]) == ("unknown", reason)


def test_a_bare_script_is_signalled_by_its_run_script(started):
    assert f"begun [] {started.folder('alone')}/checkpoints" in started.log("alone")
    ended = started.asked_to_stop("alone")
    assert (ended.name, ended.reason, ended.exit_code) == ("stopped", "on request", 1)
    assert started.log("alone", stream="stderr") == "ended by itself\n"
    started.type("resume", "alone", "detach=true")
    until(lambda: "begun ['again', 'and again']" in started.log("alone", 2), 60)


def test_a_bare_script_without_a_handler_is_ended_by_the_signal(started):
    assert "cancelled after" in started.type("cancel", "plain")
    assert "killed" not in started.ended("plain").reason


def test_without_a_signal_it_is_killed_when_it_is_cancelled(started):
    printed = started.type("cancel", "never")
    assert "cancelled after" in printed and "asked" not in printed
    assert not (started.folder("never") / "attempts/1/stopped.json").exists()
