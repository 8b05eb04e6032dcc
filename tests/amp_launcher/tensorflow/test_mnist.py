"""The MNIST trainer in TensorFlow as a person meets it: a command, its output and its files; several processes and
devices. `tests/recipes/contract` has what every framework does."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys

import pytest

from amp_launcher.loop.array_state import read
from amp_launcher.tensorflow import node
from tests.amp_launcher import forking
from tests.amp_launcher.contract.runs import losses, train
from tests.amp_launcher.torch.trainers import result, rows, steps
from tests.recipes.data.idx_files import write_mnist

MODULE = "amp_launcher.recipes.mnist.train_tensorflow"
TWO_DEVICES = "tests.amp_launcher.tensorflow.two_devices"
NO_DROPOUT = ("train.dropout_conv=0", "train.dropout_dense=0")
BOUND = 0.02
"""Of losses in bfloat16, which has 8 bits, that were summed in another order."""


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A short job: 64 images in 8 steps an epoch."""
    return ["data=mnist", f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'))}", "batch=8", "train.lr=0.1"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory, words):
    """A run as a person types it: how its process ended, and its folder."""
    folder = tmp_path_factory.mktemp("typed") / "run"
    command = [sys.executable, "-m", MODULE, "amp=o2", "epochs=2", "checkpoint.every=5", *words, f"run={folder}"]
    return subprocess.run(command, env=forking.environment(), capture_output=True, text=True), folder


def test_a_run_tells_people_what_it_does_and_leaves_the_whole_record(typed):
    ended, folder = typed
    assert (ended.returncode, ended.stderr) == (0, "")
    for line in (
        "mnist on mnist: 64 images, 16 held out",
        "amp=o2: bfloat16 by keras_policy (amp.dtype=auto, on a CPU), no loss scale",
        "amp=o2 proved: bfloat16 in 100.0% of forward and 100.0% of backward",
    ):
        assert line in ended.stdout
    record = result(folder)
    assert (record["framework"], record["mechanism"], record["attempts"]) == ("tensorflow", "keras_policy", 1)
    assert (record["steps"], record["world_size"], record["determinism"]) == (16, 1, "exact")
    assert record["updates"] == {"attempted": 16, "applied": 16}
    assert record["observed"]["param_dtypes"].keys() == {"float32"}
    events = [row["event"] for row in rows(folder) if "event" in row]
    assert events == ["start", "checkpoint", "eval", "checkpoint", "checkpoint", "eval", "checkpoint", "end"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 17))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000000015", "step-000000016"]


def test_several_steps_of_one_execution_are_rows_of_their_own_and_the_same_steps(tmp_path, words, typed):
    more = ("epochs=2", "checkpoint.every=6", "steps_per_execution=4")  # 4, 2, 2, 4, 4: two graphs
    train("tensorflow", "mnist", tmp_path, "amp=o2", *words, *more)
    assert [row["step"] for row in steps(tmp_path)] == list(range(1, 17))
    assert losses(tmp_path) == pytest.approx(losses(typed[1]), rel=1e-5)
    assert result(tmp_path)["observed"]["verdict"] == "proved", result(tmp_path)["observed"]
    assert [row["step"] for row in rows(tmp_path) if row.get("event") == "checkpoint"] == [6, 12, 16]


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_go_on_bit_by_bit(tmp_path, words):
    job = ["amp=o1", *words, "steps=10", *NO_DROPOUT, "checkpoint.every=5"]
    two, again = (tmp_path / name for name in ("two", "again"))
    one = train("tensorflow", "mnist", tmp_path / "one", *job)
    printed = together(*job, f"run={two}")
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["rank", "0", "1"]
    assert losses(one) == pytest.approx(losses(two), rel=BOUND)
    record = result(two)
    assert (record["world_size"], record["observed"]["verdict"]) == (2, "proved")
    assert "on 2 ranks" in record["observed"]["why"]
    shutil.copytree(two, again)
    shutil.rmtree(again / "checkpoints" / "step-000000010")
    assert "resumed after step 5" in together(*job, f"run={again}")
    (values, _), (others, _) = (read(folder / "checkpoints/step-000000010/state.npz") for folder in (two, again))
    assert [name for name in values if values[name].tobytes() != others[name].tobytes()] == []
    assert (losses(again), result(again)["eval"]) == (losses(two), record["eval"])


def together(*words: str) -> str:
    """What two processes of one job, on loopback, tell people."""
    candidates = random.SystemRandom().sample(range(20000, 32000), 100)  # below those of outgoing connections
    workers = ",".join(f"127.0.0.1:{port}" for port in list(filter(is_free, candidates))[:2])
    starts = [
        ["amp_launcher.tensorflow.node", f"--workers={workers}", f"--number={number}", "-m", MODULE, *words]
        for number in range(2)
    ]
    both = [process.complete() for process in [forking.start(*command) for command in starts]]
    assert [process.returncode for process in both] == [0, 0], both
    return both[0].stdout


def is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def test_one_process_trains_on_two_devices_as_on_one(tmp_path, words):
    job = ["amp=o0", *words, "steps=6", *NO_DROPOUT, "train.clip=0.5"]
    one, two = train("tensorflow", "mnist", tmp_path / "one", *job), tmp_path / "two"
    ended = forking.run(TWO_DEVICES, *job, "accumulate=2", "steps_per_execution=3", f"run={two}")
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()[:3]] == ["rank", "0", "1"]
    assert "batch 8 over 2 devices in 2 micro-batches" in ended.stdout
    for column in ("loss", "grad_norm"):
        single, mirrored = ([row[column] for row in steps(folder)] for folder in (one, two))
        assert single == pytest.approx(mirrored, rel=1e-4)
    assert (result(two)["world_size"], result(two)["observed"]["verdict"]) == (2, "proved")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["--workers=a:1"], "usage"),
        (["--workers=a:1", "--number=x", "-m", "json"], "usage"),
        (["--workers=a:1", "--number=1", "-m", "json"], "--number=1 of 1 workers"),
    ],
)
def test_a_wrong_command_line_of_a_process_is_refused(wrong, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        node.main(wrong)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
