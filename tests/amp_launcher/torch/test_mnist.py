"""The MNIST trainer as a person meets it: a command, its output, its exit code and its files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_launcher import arguments
from amp_launcher.loop import training
from amp_launcher.loop.divergence import PATIENCE
from amp_launcher.recipes.mnist import train_torch as mnist
from amp_launcher.torch import loop, supervised
from amp_launcher.torch.hardware import TorchDevice
from amp_launcher.torch.observe import dispatch_observer, observer
from amp_launcher.typed import plain
from tests.amp_launcher.torch.trainers import MODULE, result, rows, run, start, steps, succeed, type_command
from tests.recipes.data.idx_files import write_mnist


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A short job: 64 images in 8 steps an epoch."""
    return ["data=mnist", f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'))}", "batch=8", "train.lr=0.1"]


@pytest.fixture
def train(capsys, monkeypatch, tmp_path, words) -> Callable[..., Ended]:
    """Runs the short job, with other words in place of those of the same key, in this process and in the folder run."""
    for name in [name for name in os.environ if name.startswith("LAUNCHER_")]:
        monkeypatch.delenv(name)

    def train(*more: str) -> Ended:
        by_key = {word.partition("=")[0]: word for word in (*words, f"run={tmp_path / 'run'}", *more)}
        capsys.readouterr()
        code = loop.main("mnist", mnist.train, [word for key, word in by_key.items() if word != f"{key}="])
        return Ended(code, *capsys.readouterr())

    return train


@pytest.mark.slow
def test_digits_are_learnt_in_one_epoch_of_small_batches(tmp_path):
    succeed(["amp=o2", "epochs=1", "batch=16", f"run={tmp_path}"])
    record = result(tmp_path)
    assert record["eval"]["accuracy"] >= 0.9
    assert (record["observed"]["verdict"], record["status"]) == ("proved", "done")


def test_a_run_tells_people_what_it_does_and_leaves_the_complete_record(tmp_path, words):
    folder = tmp_path / "run"
    printed = type_command(["amp=o2", *words, "epochs=2", "checkpoint.every=5", f"run={folder}"])
    assert "mnist on mnist: 64 images, 16 held out" in printed
    assert "amp=o2: bfloat16 by half_model_fp32_masters (amp.dtype=auto, on a CPU), no loss scale" in printed
    assert printed.count("held-out accuracy") == 3
    assert "amp=o2 proved" in printed
    record = result(folder)
    assert record["requested"]["dtype"] == "auto"
    assert (record["effective"]["dtype"], record["effective"]["loss_scale"]) == ("bfloat16", "none")
    assert (record["run"], record["attempts"], record["steps"], record["world_size"]) == ("run", 1, 16, 1)
    assert record["updates"] == {"attempted": 16, "applied": 16}
    assert record["determinism"] == "exact"
    assert record["throughput"]["warmup_steps"] + record["throughput"]["steps"] == 16
    assert record["digests"]["data"].startswith("sha256:")
    assert record["peak_memory_bytes"] > 2**26 and record["startup_memory_bytes"] > 2**26
    events = [row["event"] for row in rows(folder) if "event" in row]
    assert events == ["start", "checkpoint", "eval", "checkpoint", "checkpoint", "eval", "checkpoint", "end"]
    assert rows(folder)[-1]["step"] == 16, "which `ls` shows until the first row of a resumed run"
    assert [(row["step"], row["epoch"]) for row in steps(folder)] == [(step, step > 8) for step in range(1, 17)]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000000015", "step-000000016"]


def test_peak_memory_is_that_of_timed_steps(train, monkeypatch, tmp_path):
    """The first step stands for cuDNN's autotuner; `taken` for what a GPU's allocator counts."""
    taken: list[int] = []
    monkeypatch.setattr(TorchDevice, "peak_memory", lambda device: max(taken, default=10))
    monkeypatch.setattr(TorchDevice, "reset_peak_memory", lambda device: taken.clear())
    sizes = chain([90], repeat(20))
    execute, measure, observe = loop._Steps.execute, supervised.measure, observer.PrecisionObserver.step

    def taking(size, function):
        return lambda *given: (taken.append(size), function(*given))[1]

    monkeypatch.setattr(loop._Steps, "execute", lambda *given: taking(next(sizes), execute)(*given))
    monkeypatch.setattr(mnist, "measure", taking(80, measure))
    monkeypatch.setattr(observer.PrecisionObserver, "step", taking(70, observe))
    assert train("amp=o0", "steps=15", "checkpoint.every=4").code == 0
    record = result(tmp_path / "run")
    assert (record["peak_memory_bytes"], record["startup_memory_bytes"]) == (20, 90)
    assert {row["memory_bytes"] for row in steps(tmp_path / "run") if row["timed"]} == {20}


def test_without_a_run_folder_nothing_is_written(tmp_path, train):
    ended = train("amp=o1", "steps=3", "run=")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert (lines[0], lines[3]) == ("mnist on mnist: 64 images, 16 held out", "batch 8, 3 steps")
    assert lines[-2].startswith("3 steps in ") and lines[-1].startswith("amp=o1 proved")
    assert not list(tmp_path.iterdir())


def test_a_long_run_without_a_folder_says_how_far_it_is(train, monkeypatch):
    assert "step 2/3" not in train("amp=o1", "steps=3", "run=").out
    monkeypatch.setattr(training, "SAID_EVERY", 0.0)
    assert "step 2/3" not in train("amp=o1", "steps=3").out, "its metrics show it"
    said = train("amp=o1", "amp.gemm=fp8-rowwise-gw-hp", "steps=3", "run=").out
    assert said.index("a CPU multiplies these") < said.index("step 1/3\nstep 2/3\n")


def test_the_run_folder_alone_gives_settings_and_identity(tmp_path, words, monkeypatch):
    settings = plain(arguments.parse(["amp=o1", *words, "steps=3"], "mnist", "torch").settings)
    plan = {"schema": 2, "settings": settings, "nodes": 1, "processes": 1, "code": "abc"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setenv("LAUNCHER_RUN_ID", "20260101-000000-calm-otter")
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "4")
    assert loop.main("mnist", mnist.train, [f"run={tmp_path}"]) == 0
    record = result(tmp_path)
    assert (record["run"], record["attempts"]) == ("20260101-000000-calm-otter", 4)
    assert (record["digests"]["code"], record["steps"]) == ("abc", 3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_file_ends_the_run_saved_and_it_resumes_from_there(tmp_path, words, ranks):
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


def test_a_run_that_was_asked_to_stop_before_it_began_saves_and_stops_at_once(tmp_path, train):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "STOP").touch()
    assert train("amp=o1").code == 85
    assert json.loads((tmp_path / "run" / "attempts" / "1" / "stopped.json").read_text())["step"] == 0
    record = result(tmp_path / "run")
    assert (record["status"], record["observed"]["why"]) == ("stopped", "no step was observed")


def test_an_attempt_that_a_later_one_has_replaced_deletes_nothing_that_that_one_writes(train, monkeypatch, tmp_path):
    written = tmp_path / "run" / "checkpoints" / ".step-000000005.7"
    for folder in (written, tmp_path / "run" / "attempts" / "2"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    ended = train("amp=o1", "steps=2")
    assert (ended.code, written.is_dir()) == (1, True)
    assert "attempts/2 has taken over" in ended.err


def test_an_interrupted_run_says_so(tmp_path, words):
    process = start(["amp=o1", *words, "epochs=10000", f"run={tmp_path}"])
    wait_for(tmp_path / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert result(tmp_path)["reason"] == "interrupted from the keyboard"


def test_all_ranks_end_together_when_the_loss_is_nan(tmp_path):
    folder, reason = tmp_path / "run", "the loss is nan since step 2; try a lower learning rate"
    ended = run(("amp=o0", "train.lr=1e20", "batch=4", "steps=500", f"run={folder}"), ranks=2)
    assert ended.returncode == 1
    assert ended.stderr.count(f"mnist: {reason}") == 1
    record = result(folder)
    assert (record["status"], record["reason"], record["steps"]) == ("failed", reason, len(steps(folder)))
    assert (record["loss"]["last"], "loss.last" in record["nonfinite"]) == (None, True)
    assert (steps(folder)[1]["loss"], steps(folder)[1]["nonfinite"]) == (None, ["loss"])
    assert rows(folder)[-1]["event"] == "end" and len(steps(folder)) < 500
    assert not (folder / "checkpoints").exists()


def test_a_scale_that_only_overflows_ends_the_run_and_leaves_its_checkpoints(tmp_path):
    mode = ("amp=o2", "amp.dtype=float16", "loss_scale=static", "loss_scale.init=1e38")
    ended = run((*mode, "batch=1", "steps=500", "checkpoint.every=8", f"run={tmp_path}"))
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    record, count = result(tmp_path), len(steps(tmp_path))
    assert record["reason"].startswith("every step since step 1 overflowed and was skipped")
    assert PATIENCE <= count < 500 and record["loss_scale"]["skipped_steps"] == count
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000008", "step-000000016"]


def computes_in_float32(monkeypatch) -> None:
    monkeypatch.setattr(mnist.Net, "forward", torch.autocast("cpu", enabled=False)(mnist.Net.forward))


def can_not_be_observed(monkeypatch) -> None:
    monkeypatch.setattr(dispatch_observer, "missing", lambda **_: "an observer")


@pytest.mark.parametrize(
    ("spoil", "verdict", "message", "end"),
    [
        (computes_in_float32, "contradicted", "what ran was not amp=o1", "; so it ended after step 1 of 4"),
        (
            can_not_be_observed,
            "unknown",
            "nothing proves that amp=o1 ran",
            "; so it ended after step 1 of 4 (require_proof=false lets that pass)",
        ),
    ],
)
def test_a_failed_proof_ends_the_run_at_once_without_a_checkpoint(
    tmp_path, train, monkeypatch, spoil, verdict, message, end
):
    spoil(monkeypatch)
    ended = train("amp=o1", "steps=4")
    record = result(tmp_path / "run")
    assert ended.code == 1
    assert message in ended.err and record["reason"] in ended.err and len(ended.err.splitlines()) == 1
    assert (record["status"], record["observed"]["verdict"], record["steps"]) == ("failed", verdict, 1)
    assert record["reason"].endswith(end)
    assert [row["step"] for row in steps(tmp_path / "run")] == [1]
    assert not list((tmp_path / "run" / "checkpoints").glob("*")), "nothing that it could resume from"


def test_where_no_proof_is_required_its_absence_is_reported_once(tmp_path, train, monkeypatch):
    can_not_be_observed(monkeypatch)
    ended = train("amp=o1", "steps=5", "require_proof=false")
    assert ended.code == 0, ended.err
    assert (result(tmp_path / "run")["observed"]["verdict"], result(tmp_path / "run")["steps"]) == ("unknown", 5)
    (line,) = [line for line in ended.out.splitlines() if line.startswith("no proof: step 1: ")]
    assert "an observer" in line
    assert ended.out.index(line) < ended.out.index("epoch")


def test_an_entry_that_only_the_evaluation_matches_is_observed_there(tmp_path, train, monkeypatch):
    inner = mnist.Net.forward

    def forward(self, inputs):
        return inner(self, inputs) if self.training else inner(self, inputs).softmax(-1)

    monkeypatch.setattr(mnist.Net, "forward", forward)
    ended = train("amp=o1", "amp.deny=[softmax]", "epochs=2")
    assert ended.code == 0, ended.err
    assert result(tmp_path / "run")["observed"]["verdict"] == "proved"


def test_an_entry_that_nothing_matches_fails_the_run_and_is_named(train):
    ended = train("amp=o1", "amp.deny=[matmul,conv2d]", "steps=4")
    assert ended.code == 1
    assert "amp.deny=[matmul] matched nothing that was observed" in ended.err and "conv2d" not in ended.err


def test_a_run_that_breaks_off_leaves_its_reason(tmp_path, train):
    hook = register_optimizer_step_pre_hook(lambda *_: 1 / 0)
    try:
        ended = train("amp=o1")
    finally:
        hook.remove()
    assert (ended.code, "ZeroDivisionError" in ended.err) == (1, True)
    record = result(tmp_path / "run")
    assert (record["status"], record["reason"]) == ("failed", "ZeroDivisionError: division by zero")


def test_a_data_set_with_nothing_held_out_has_no_evaluation(tmp_path, train):
    assert train("amp=o1", "data=synthetic", "data.dir=", "steps=3").code == 0
    assert result(tmp_path / "run")["eval"] == {}


def test_micro_batches_and_two_ranks_make_the_same_step(tmp_path, words, train):
    job = ["amp=o0", "steps=6", "train.dropout_conv=0", "train.dropout_dense=0", "train.clip=0.5"]
    folders = [tmp_path / name for name in ("one", "micro", "two")]
    assert train(*job, f"run={folders[0]}").code == 0
    assert train(*job, "accumulate=4", f"run={folders[1]}").code == 0
    torchrun = ["--standalone", "--nproc-per-node=2", *MODULE]
    printed = succeed([*torchrun, *words, *job, f"run={folders[2]}"], program=("-m", "torch.distributed.run"))
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["rank", "0", "1"]
    assert result(folders[2])["world_size"] == 2
    for column in ("loss", "grad_norm"):
        one, *others = ([row[column] for row in steps(folder)] for folder in folders)
        assert others == [pytest.approx(one, rel=1e-4)] * 2


def test_help_starts_no_run(train):
    ended = train("--help")
    assert (ended.code, "train.lr=1.0" in ended.out) == (0, True)


def wait_for(path: Path, process) -> None:
    """Until a step is written there."""
    deadline = time.monotonic() + 120
    while not (path.exists() and '"step"' in path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
