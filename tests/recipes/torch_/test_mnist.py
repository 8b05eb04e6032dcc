"""The MNIST trainer as a person meets it: a command, its output, its exit code and its files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from recipes import arguments
from recipes.torch_ import loop, mnist
from recipes.torch_.observe import dispatch_observer
from recipes.typed import plain
from tests.recipes.data.idx_files import write_mnist
from tests.recipes.torch_.trainers import result, rows, run, start, steps, succeed, type_command


@pytest.fixture
def train(capsys, monkeypatch) -> Callable[..., Ended]:
    """The trainer in this process: a function from its words to what became of it."""
    for name in [name for name in os.environ if name.startswith("LAUNCHER_")]:
        monkeypatch.delenv(name)

    def train(*words: str) -> Ended:
        capsys.readouterr()
        code = loop.main("mnist", mnist.train, words)
        return Ended(code, *capsys.readouterr())

    return train


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A short job: 64 images in 8 steps an epoch."""
    return ["data=mnist", f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'))}", "batch=8", "train.lr=0.1"]


@pytest.mark.slow
def test_digits_are_learnt_in_a_sixth_of_the_default_epochs(tmp_path):
    ended = run(["amp=o2", "epochs=4", f"run={tmp_path}"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = result(tmp_path)
    assert found["eval"]["accuracy"] >= 0.9
    assert found["observed"]["verdict"] == "proved"
    assert found["status"] == "done"


def test_a_run_tells_people_what_it_does_and_leaves_the_whole_record(tmp_path, words):
    said = type_command(["amp=o2", *words, "epochs=2", "checkpoint.every=5", f"run={tmp_path / 'run'}"])
    assert "mnist on mnist: 64 images, 16 held out" in said
    assert "amp=o2: bfloat16 by half_model_fp32_masters (amp.dtype=auto, on a CPU), no loss scale" in said
    assert said.count("held-out accuracy") == 3
    assert "amp=o2 proved" in said
    folder = tmp_path / "run"
    found = result(folder)
    assert found["requested"]["dtype"] == "auto"
    assert found["effective"]["dtype"] == "bfloat16"
    assert found["effective"]["loss_scale"] == "none"
    assert (found["run"], found["attempts"], found["steps"], found["world_size"]) == ("run", 1, 16, 1)
    assert found["updates"] == {"attempted": 16, "applied": 16}
    assert found["determinism"] == "exact"
    assert found["throughput"]["warmup_steps"] + found["throughput"]["steps"] == 16
    assert found["digests"]["data"].startswith("sha256:")
    assert found["peak_memory_bytes"] > 2**26
    events = [row["event"] for row in rows(folder) if "event" in row]
    assert events == ["start", "checkpoint", "eval", "checkpoint", "checkpoint", "eval", "checkpoint", "end"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 17))
    assert {row["epoch"] for row in steps(folder)} == {0, 1}
    assert sorted(each.name for each in (folder / "checkpoints").iterdir()) == ["step-000000015", "step-000000016"]


def test_without_a_run_folder_nothing_is_written(tmp_path, words, train):
    ended = train("amp=o1", *words, "steps=3")
    assert ended.returncode == 0
    assert "amp=o1 proved" in ended.stdout
    assert "result in" not in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("amp=o9", "mnist: amp=o9 is not one of o0, o1, o2, o3 (command line)"),
        ("xla=true", "mnist: xla=true is TensorFlow's compiler; for torch say compile=true"),
        ("batch=9000", "mnist: batch=9000 is more than the 64 samples of data=mnist"),
        ("accumulate=3", "mnist: batch=8 does not divide by 1 device x accumulate=3; say batch=6 or 9"),
        ("data.dir=/nowhere", "mnist: data.dir=/nowhere has neither train-images-idx3-ubyte nor"),
        ("tf32=true", "mnist: tf32=true: a CPU has no TF32; say tf32=false"),
        ("amp.keep_fp32=[dens3]", "amp.keep_fp32"),
    ],
)
def test_a_wrong_request_gets_one_line_and_leaves_nothing(tmp_path, words, train, wrong, complaint):
    key = wrong.partition("=")[0]
    asked = [word for word in words if not word.startswith(f"{key}=")]
    ended = train("device=cpu", *asked, wrong, f"run={tmp_path / 'run'}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""
    assert not (tmp_path / "run").exists()


def test_the_run_folder_alone_gives_settings_and_identity(tmp_path, words, train, monkeypatch):
    settings = plain(arguments.parse(["amp=o1", *words, "steps=3"], "mnist", "torch").settings)
    plan = {"schema": 2, "settings": settings, "nodes": 1, "processes": 1, "code": "abc"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setenv("LAUNCHER_RUN_ID", "20260101-000000-calm-otter")
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "4")
    ended = train(f"run={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    found = result(tmp_path / "run")
    assert (found["run"], found["attempts"], found["digests"]["code"]) == ("20260101-000000-calm-otter", 4, "abc")


def test_fewer_processes_than_planned_are_an_error_with_a_table(tmp_path, words, train):
    settings = plain(arguments.parse(words, "mnist", "torch").settings)
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 2, "settings": settings, "nodes": 2, "processes": 1}))
    ended = train(f"run={tmp_path}")
    assert ended.returncode == 1
    assert "1 ranks have met, and 2 were planned" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_file_ends_the_run_saved_and_it_goes_on_from_there(tmp_path, words, ranks):
    job = ["amp=o2", *words, "checkpoint.every=0", f"run={tmp_path}"]
    process = start([*job, "epochs=10000"], ranks, LAUNCHER_ATTEMPT="2")
    wait_for(tmp_path / "metrics.jsonl", process)
    (tmp_path / "STOP").touch()
    out, err = process.communicate()
    assert process.returncode == 85, out + err
    marker = json.loads((tmp_path / "attempts" / "2" / "stopped.json").read_text())
    assert (tmp_path / marker["checkpoint"] / "state.pt").exists()
    assert not (tmp_path / "STOP").exists()
    assert [row["step"] for row in steps(tmp_path)] == list(range(1, marker["step"] + 1))
    assert result(tmp_path)["status"] == "stopped"
    more = marker["step"] // 8 + 1
    assert f"resumed after step {marker['step']}" in succeed([*job, f"epochs={more}"], ranks)
    assert [row["step"] for row in steps(tmp_path)] == list(range(1, more * 8 + 1))
    assert (result(tmp_path)["status"], result(tmp_path)["attempts"]) == ("done", 3)


def test_a_run_that_was_asked_to_stop_before_it_began_saves_and_stops_at_once(tmp_path, words, train):
    (tmp_path / "STOP").touch()
    assert train("amp=o1", *words, f"run={tmp_path}").returncode == 85
    assert json.loads((tmp_path / "attempts" / "1" / "stopped.json").read_text())["step"] == 0


def test_an_interrupted_run_says_so(tmp_path, words):
    process = start(["amp=o1", *words, "epochs=10000", f"run={tmp_path}"])
    wait_for(tmp_path / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert result(tmp_path)["reason"] == "interrupted from the keyboard"


def test_a_loss_that_is_not_finite_is_recorded_and_no_nan_written(tmp_path, words, train):
    rest = [word for word in words if "lr" not in word]
    ended = train("amp=o0", *rest, "train.lr=1e30", "steps=6", f"run={tmp_path}")
    assert ended.returncode == 1, ended.stderr
    found = result(tmp_path)
    assert found["reason"].startswith("the loss is nan since step 2")
    assert found["loss"]["last"] is None
    assert "loss.last" in found["nonfinite"]
    assert steps(tmp_path)[-1]["loss"] is None
    assert steps(tmp_path)[-1]["nonfinite"] == ["loss"]


def blind(monkeypatch) -> None:
    monkeypatch.setattr(dispatch_observer, "missing", lambda **_: "a thing to see with")


def test_a_model_that_computes_in_float32_fails_the_run_as_soon_as_it_is_seen_and_says_why(
    tmp_path, words, train, monkeypatch
):
    monkeypatch.setattr(mnist.Net, "forward", torch.autocast("cpu", enabled=False)(mnist.Net.forward))
    ended = train("amp=o1", *words, "steps=4", f"run={tmp_path / 'run'}")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "what ran was not amp=o1" in ended.stderr
    found = result(tmp_path / "run")
    assert (found["status"], found["observed"]["verdict"]) == ("failed", "contradicted")
    assert found["reason"] in ended.stderr
    assert found["reason"].endswith("; so it ended after step 1 of 4")
    assert (found["steps"], [row["step"] for row in steps(tmp_path / "run")]) == (1, [1])
    assert not list((tmp_path / "run" / "checkpoints").glob("*")), "nothing that it could go on from"


def test_what_could_not_be_observed_ends_the_run_at_once_unless_that_is_allowed(tmp_path, words, train, monkeypatch):
    blind(monkeypatch)
    ended = train("amp=o1", *words, "steps=4", f"run={tmp_path / 'run'}")
    assert ended.returncode == 1
    assert "nothing proves that amp=o1 ran" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    found = result(tmp_path / "run")
    assert (found["status"], found["observed"]["verdict"], found["steps"]) == ("failed", "unknown", 1)
    assert found["reason"].endswith("; so it ended after step 1 of 4 (require_proof=false lets that pass)")
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_where_no_proof_is_required_it_is_told_once_that_there_will_be_none(tmp_path, words, train, monkeypatch):
    blind(monkeypatch)
    ended = train("amp=o1", *words, "steps=5", "require_proof=false", f"run={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    found = result(tmp_path / "run")
    assert (found["observed"]["verdict"], found["steps"]) == ("unknown", 5)
    told = [line for line in ended.stdout.splitlines() if line.startswith("no proof: step 1: ")]
    assert len(told) == 1
    assert "a thing to see with" in told[0]
    assert ended.stdout.index(told[0]) < ended.stdout.index("epoch")


def test_an_entry_that_only_the_evaluation_matches_is_observed_there(tmp_path, words, train, monkeypatch):
    inner = mnist.Net.forward

    def forward(self, inputs):
        return inner(self, inputs) if self.training else inner(self, inputs).softmax(-1)

    monkeypatch.setattr(mnist.Net, "forward", forward)
    ended = train("amp=o1", "amp.deny=[softmax]", *words, "epochs=2", f"run={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    assert result(tmp_path / "run")["observed"]["verdict"] == "proved"


def test_an_entry_that_nothing_matches_fails_the_run_and_is_named(tmp_path, words, train):
    ended = train("amp=o1", "amp.deny=[matmul,conv2d]", *words, "steps=4", f"run={tmp_path / 'run'}")
    assert ended.returncode == 1
    assert "amp.deny=[matmul] matched nothing that was observed" in ended.stderr
    assert "conv2d" not in ended.stderr


def test_a_run_that_breaks_off_leaves_its_reason(tmp_path, words, train):
    hook = register_optimizer_step_pre_hook(lambda *_: 1 / 0)
    try:
        ended = train("amp=o1", *words, f"run={tmp_path / 'run'}")
    finally:
        hook.remove()
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    found = result(tmp_path / "run")
    assert (found["status"], found["reason"]) == ("failed", "ZeroDivisionError: division by zero")


def test_a_data_set_with_nothing_held_out_has_no_evaluation(tmp_path, train):
    assert train("amp=o1", "data=synthetic", "batch=8", "steps=3", f"run={tmp_path}").returncode == 0
    assert result(tmp_path)["eval"] == {}


def test_two_ranks_train_on_the_same_global_batches_as_one(tmp_path, words):
    job = ["amp=o0", *words, "steps=6", "train.dropout_conv=0", "train.dropout_dense=0"]
    succeed([*job, f"run={tmp_path / 'one'}"])
    said = type_command([*job, f"run={tmp_path / 'two'}"], ranks=2)
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["rank", "0", "1"]
    one, two = ([row["loss"] for row in steps(tmp_path / name)] for name in ("one", "two"))
    assert one == pytest.approx(two, rel=1e-4)
    assert result(tmp_path / "two")["world_size"] == 2


def test_micro_batches_make_the_same_step(tmp_path, words, train):
    job = ["amp=o0", *words, "steps=6", "train.dropout_conv=0", "train.dropout_dense=0", "train.clip=0.5"]
    assert train(*job, f"run={tmp_path / 'one'}").returncode == 0
    assert train(*job, "accumulate=4", f"run={tmp_path / 'four'}").returncode == 0
    for column in ("loss", "grad_norm"):
        one, four = ([row[column] for row in steps(tmp_path / name)] for name in ("one", "four"))
        assert one == pytest.approx(four, rel=1e-4)


def test_help_costs_no_run(train):
    ended = train("--help")
    assert ended.returncode == 0
    assert "train.lr=1.0" in ended.stdout


def wait_for(path: Path, process) -> None:
    """Until a step is written there."""
    deadline = time.monotonic() + 120
    while not (path.exists() and '"step"' in path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
