"""What every run of a recipe does, whatever its framework: its record, its resuming, its refusals."""

from __future__ import annotations

import itertools
import os
import random
import signal

import pytest

from amp_launcher.loop.array_state import read
from tests.amp_launcher import forking
from tests.amp_launcher.contract.runs import DONE, REFUSED, STOPPED, losses, run, train
from tests.amp_launcher.torch.trainers import result, steps
from tests.onednn import bfloat16_needed
from tests.recipes.data.idx_files import write_mnist

COLUMNS = ("step", "epoch", "loss", "lr", "loss_scale", "skipped", "skipped_total", "grad_norm")
SIMPLENET = ("train.width=32", "batch=16")
SKIPPING = ("amp.dtype=float16", "loss_scale=dynamic", "loss_scale.init=268435456", "loss_scale.growth_every=3")
GROWING = ("amp.dtype=float16", "loss_scale.init=64", "loss_scale.growth_every=2")
MOVING = ("amp=o2", "loss_scale=dynamic", *GROWING[1:])
GAN = ("batch=4", "train.channels=[8,8,4,4]", "loss_scale=dynamic", "loss_scale.per_optimizer=true")


@pytest.fixture(scope="module")
def words_of(tmp_path_factory):
    """Short jobs. MNIST's has evaluations and dropout."""
    mnist = ("data=mnist", f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'))}")
    return {
        "mnist": (*mnist, "batch=8", "train.lr=0.1", "epochs=2"),
        "simplenet": (*SIMPLENET, "train.lr=0.01", "steps=20"),
        "gan": (*mnist, *GAN, "steps=4"),
    }


def assert_equal(complete, parts):
    """That two runs have the same steps, evaluations, weights, optimizers and loss scales, bit for bit."""
    assert result(complete)["eval"] == result(parts)["eval"]
    rows, others = ([[row[column] for column in COLUMNS] for row in steps(folder)] for folder in (complete, parts))
    assert rows == others
    (values, rest), (other_values, other_rest) = (
        read(max((folder / "checkpoints").iterdir()) / "state.npz") for folder in (complete, parts)
    )
    assert values.keys() == other_values.keys()
    assert [name for name in values if values[name].tobytes() != other_values[name].tobytes()] == []
    assert rest["precision"] == other_rest["precision"]


def train_until(kill_at, *job):
    """Train in TensorFlow and kill this process before its step `kill_at`, counted from 1; 0 never does."""
    from amp_launcher.tensorflow import executor

    execute, count = executor.GraphSteps.execute, itertools.count(1)

    def execute_or_die(*arguments):
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*arguments)

    executor.GraphSteps.execute = execute_or_die
    assert run("tensorflow", *job) == DONE


@pytest.mark.usefixtures("small_discriminator")
@pytest.mark.parametrize(
    ("framework", "recipe", "words"),
    [
        ("tensorflow", "mnist", ("amp=o2",)),
        ("tensorflow", "simplenet", ("amp=o2", *SKIPPING)),
        ("tensorflow", "gan", ("amp=o2", *GROWING)),
        ("paddle", "mnist", ("amp=o0",)),
        ("paddle", "mnist", ("amp=o0", "train.api=model")),
        ("paddle", "simplenet", ("amp=o0", "train.api=loop")),
        ("paddle", "simplenet", ("amp=o0", "train.api=static")),
        pytest.param("paddle", "simplenet", ("amp=o1", "train.api=static"), marks=bfloat16_needed),
        pytest.param(
            "paddle", "simplenet", ("amp=o3", "train.fp16_guard=true", "train.api=static"), marks=bfloat16_needed
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_a_stopped_run_goes_on_and_ends_bit_for_bit_as_one_that_never_stopped(
    tmp_path, words_of, framework, recipe, words
):
    job = (*words_of[recipe], *words)
    complete, parts = train(framework, recipe, tmp_path / "complete", *job), tmp_path / "parts"
    stop = len(losses(complete)) // 2 + 1
    assert run(framework, recipe, parts, *job, f"checkpoint.stop_every={stop}") == STOPPED
    assert result(parts)["status"] == "stopped"
    assert run(framework, recipe, parts, *job) == DONE
    records = result(complete), result(parts)
    for record in records:
        assert (record["status"], record["framework"], record["steps"]) == ("done", framework, len(losses(complete)))
        assert (record["determinism"], record["observed"]["verdict"]) == ("exact", "proved")
        assert record["versions"][framework] and record["throughput"]["mean"] > 0
    assert records[1]["resumed_from"] == stop
    assert_equal(complete, parts)
    if words[1:] == SKIPPING:
        assert 0 < records[0]["loss_scale"]["skipped_steps"] < records[0]["steps"]
    if words[1:] == GROWING:
        scales = [row["loss_scale"] for row in steps(complete)]
        assert scales == [64, 64, 128, 128] and stop > 2, "the scale of each optimizer has moved before the stop"
        assert all(sorted(row["losses"]) == ["discriminator", "generator"] for row in steps(complete))
        assert all(row["loss"] == pytest.approx(sum(row["losses"].values())) for row in steps(complete))


@pytest.mark.slow
def test_a_tensorflow_run_killed_in_a_random_step_goes_on_in_a_new_process_bit_for_bit(tmp_path, words_of):
    """With dropout, evaluations, and a loss scale that has moved."""
    killed_at = random.SystemRandom().randint(5, 16)
    complete, parts = tmp_path / "complete", tmp_path / "parts"
    for folder, kill_at, code in ((complete, 0, 0), (parts, killed_at, -signal.SIGKILL), (parts, 0, 0)):
        job = ("mnist", folder, *words_of["mnist"], *MOVING, "checkpoint.every=3")
        process = forking.Forked(train_until, (kill_at, *job)).complete()
        assert process.returncode == code, (killed_at, process.stderr)
    record = result(parts)
    assert (record["determinism"], record["observed"]["verdict"]) == ("exact", "proved")
    assert 0 < record["resumed_from"] < killed_at
    assert [row["loss_scale"] for row in steps(complete)] == [64 * 2 ** (step // 2) for step in range(16)]
    assert_equal(complete, parts)


def test_a_run_that_goes_on_with_other_threads_is_not_called_exact(tmp_path, monkeypatch):
    job = ("paddle", "simplenet", tmp_path, "amp=o0", *SIMPLENET)
    assert run(*job, "checkpoint.stop_every=7") == STOPPED
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert run(*job) == DONE
    assert result(tmp_path)["determinism"] == "best_effort"


@pytest.mark.parametrize(
    ("framework", "recipe", "words", "complaint"),
    [
        ("tensorflow", "mnist", "device=cuda", "device=cuda: TensorFlow sees no CUDA GPU here; say device=cpu"),
        ("tensorflow", "mnist", "compile=true", "compile=true is torch.compile; for TensorFlow say xla=true"),
        ("tensorflow", "mnist", "amp=o1 amp.deny=[Conv2d]", "did you mean Conv2D?"),
        ("tensorflow", "mnist", "amp=o2 amp.keep_fp32=[dens3]", "amp.keep_fp32"),
        ("tensorflow", "mnist", "amp=o1 xla=true", "XLA bypasses the graph rewrite"),
        ("tensorflow", "mnist", "steps_per_execution=0", "steps_per_execution=0 must be at least 1"),
        ("tensorflow", "mnist", "batch=9000", "batch=9000 is more than the 64 samples of data=mnist"),
        ("tensorflow", "mnist", "accumulate=3", "batch=8 does not divide by 1 device x accumulate=3; say batch=6 or 9"),
        (
            *("tensorflow", "mnist", "xla=true deterministic=true"),
            "recipe=mnist has max-pooling; say deterministic=false or xla=false",
        ),
        ("paddle", "simplenet", "device=cuda", "Paddle sees no CUDA GPU here"),
        ("paddle", "simplenet", "xla=true", "xla=true is TensorFlow's compiler"),
        ("paddle", "simplenet", "compile=true", "compile=true is torch.compile"),
        ("paddle", "simplenet", "profile=framework", "profile=framework supports torch and TensorFlow, not Paddle"),
        ("paddle", "simplenet", "batch=30 accumulate=4", "does not divide"),
        *(
            ("paddle", "simplenet", f"amp={level}", "on a CPU Paddle applies mixed precision to static graphs alone")
            for level in ("o1", "o2", "o3")
        ),
        ("paddle", "simplenet", "train.api=static accumulate=4", "train.api=static accumulates no gradients here"),
        ("paddle", "simplenet", "train.fp16_guard=true", "train.fp16_guard=true belongs to train.api=static"),
        (
            *("paddle", "simplenet", "amp=o1 amp.dtype=bfloat16 train.api=model"),
            "paddle.Model knows float16 alone; say amp.dtype=float16",
        ),
        (
            *("paddle", "simplenet", "amp=o3 amp.dtype=float16 train.api=model"),
            "paddle.Model has master weights at O2",
        ),
        (
            *("paddle", "simplenet", "amp=o2 amp.keep_fp32=[linears.0] train.api=static"),
            "only a loop of one's own keeps layers in float32",
        ),
        (
            *("paddle", "simplenet", "amp=o1 amp.deny=[linear] train.api=static"),
            "a static graph of Paddle's has matmul, and no linear",
        ),
        ("torch", "simplenet", "train.api=static", "train.api=static is Paddle's"),
        ("torch", "simplenet", "train.width=0", "train.width=0 must be at least 1"),
        ("torch", "mnist", "amp=o9", "amp=o9 is not one of o0, o1, o2, o3 (command line)"),
        ("torch", "mnist", "xla=true", "xla=true is TensorFlow's compiler; for torch say compile=true"),
        ("torch", "mnist", "tf32=true", "tf32=true: a CPU has no TF32; say tf32=false"),
        ("torch", "mnist", "amp=o2 amp.keep_fp32=[dens3]", "amp.keep_fp32"),
        ("torch", "mnist", "data.dir=/nowhere", "data.dir=/nowhere has neither train-images-idx3-ubyte nor"),
        ("torch", "mnist", "accumulate=3", "batch=8 does not divide by 1 device x accumulate=3; say batch=6 or 9"),
        ("torch", "mnist", "batch=9000", "batch=9000 is more than the 64 samples of data=mnist"),
    ],
)
def test_a_request_that_cannot_be_met_gets_one_line_and_leaves_nothing(
    tmp_path, words_of, capfd, framework, recipe, words, complaint
):
    folder = tmp_path / "run"
    assert run(framework, recipe, folder, "amp=o0", *words_of[recipe], *words.split()) == REFUSED
    printed = capfd.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"{recipe}: ") and complaint in line
    assert printed.out == "" and not folder.exists()
