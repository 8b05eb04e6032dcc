"""The simplenet recipe in Paddle: what it leaves, how it goes on, and its numbers beside torch's."""

from __future__ import annotations

import numpy
import paddle
import pytest

from recipes.paddle_ import simplenet
from recipes.paddle_.loop import main
from recipes.torch_ import simplenet as torch_simplenet
from recipes.torch_.loop import main as torch_main
from tests.recipes.torch_.trainers import result, steps

SMALL = ["amp=o0", "train.width=32", "batch=16", "device=cpu"]


def run(folder, *words):
    return ended("simplenet", simplenet.train, folder, *SMALL, *words)


def ended(recipe, train, folder, *words):
    """The exit code of a run in this process, and its result."""
    code = main(recipe, train, [*words, f"run={folder}"])
    return code, result(folder) if (folder / "result.json").exists() else {}


def losses(folder):
    return {row["step"]: row["loss"] for row in steps(folder)}


def test_a_float32_run_is_proved_and_leaves_what_every_framework_leaves(tmp_path):
    code, record = run(tmp_path)
    assert (code, record["status"], record["framework"], record["steps"]) == (0, "done", "paddle", 20)
    observed = record["observed"]
    assert (observed["verdict"], observed["dtype"], observed["half_flop_share"]) == ("proved", "float32", 0.0)
    assert observed["param_dtypes"] == {"float32": 9 * (32 * 32 + 32)}
    assert record["versions"]["paddle"] == paddle.__version__
    assert record["throughput"]["mean"] > 0
    assert len(losses(tmp_path)) == 20


@pytest.mark.parametrize("api", ["model", "static"])
def test_paddles_other_ways_of_training_do_the_same(tmp_path, api):
    """From the same seed: the same initial weights, and losses within float32's rounding."""
    code, record = run(tmp_path / api, f"train.api={api}", "train.lr=0.01")
    assert (code, record["observed"]["verdict"], record["observed"]["half_flop_share"]) == (0, "proved", 0.0)
    assert record["observed"]["param_dtypes"] == {"float32": 9 * (32 * 32 + 32)}
    assert run(tmp_path / "loop", "train.lr=0.01")[0] == 0
    ours, loops = losses(tmp_path / api), losses(tmp_path / "loop")
    assert list(ours.values()) == pytest.approx(list(loops.values()), rel=2e-6)
    assert paddle.in_dynamic_mode()


@pytest.mark.parametrize("api", ["loop", "static"])
def test_a_run_that_goes_on_ends_bit_for_bit_as_one_that_never_stopped(tmp_path, api):
    words = ["train.lr=0.01", f"train.api={api}"]
    assert run(tmp_path / "whole", *words)[0] == 0
    first = run(tmp_path / "parts", *words, "checkpoint.stop_every=7")
    assert (first[0], first[1]["status"]) == (85, "stopped")
    second = run(tmp_path / "parts", *words)
    assert (second[0], second[1]["resumed_from"], second[1]["determinism"]) == (0, 7, "exact")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    states = [next((tmp_path / each / "checkpoints").glob("step-*20/state.npz")) for each in ("whole", "parts")]
    whole, parts = (dict(numpy.load(each)) for each in states)
    assert [name for name in whole if name != "rest" and (whole[name] != parts[name]).any()] == []


def test_a_run_that_goes_on_with_other_threads_is_not_called_exact(tmp_path, monkeypatch):
    assert run(tmp_path, "checkpoint.stop_every=7")[0] == 85
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert run(tmp_path)[1]["determinism"] == "best_effort"


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_half_precision_on_a_cpu_is_refused_as_paddle_would_apply_none(tmp_path, capsys, level):
    code = main("simplenet", simplenet.train, [f"amp={level}", "device=cpu", f"run={tmp_path}"])
    assert code == 2
    assert "Paddle applies no mixed precision on a CPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("xla=true", "xla=true is TensorFlow's compiler"),
        ("compile=true", "compile=true is torch.compile"),
        ("profile=framework", "profile=framework supports torch and TensorFlow, not Paddle"),
        ("device=cuda", "Paddle sees no CUDA GPU here"),
        ("batch=30 accumulate=4", "does not divide"),
        ("train.api=static accumulate=4", "train.api=static accumulates no gradients here"),
        ("train.fp16_guard=true", "train.fp16_guard=true belongs to train.api=static"),
        ("amp=o1 amp.dtype=bfloat16 train.api=model", "paddle.Model knows float16 alone; say amp.dtype=float16"),
        ("amp=o3 amp.dtype=float16 train.api=model", "paddle.Model has master weights at O2"),
        ("amp=o2 amp.keep_fp32=[linears.0] train.api=static", "only a loop of one's own keeps layers in float32"),
        ("amp=o1 amp.deny=[linear] train.api=static", "a static graph of Paddle's has matmul, and no linear"),
    ],
)
def test_what_paddle_cannot_do_is_refused(tmp_path, capsys, word, problem):
    keys = [each.partition("=")[0] for each in word.split()]
    words = [each for each in SMALL if each.partition("=")[0] not in keys] + word.split()
    assert main("simplenet", simplenet.train, [*words, f"run={tmp_path}"]) == 2
    assert problem in capsys.readouterr().err


def test_paddles_ways_of_training_are_paddles_alone(capsys):
    assert torch_main("simplenet", torch_simplenet.train, [*SMALL, "train.api=static"]) == 2
    assert "train.api=static is Paddle's" in capsys.readouterr().err
