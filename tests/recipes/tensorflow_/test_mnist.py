"""The MNIST trainer in TensorFlow as a person meets it: a command, its output, its exit code and its files.

Most runs are made in this process: importing TensorFlow takes longer than they do.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest

from recipes import arguments
from recipes.mnist import RECIPE
from recipes.tensorflow_ import loop, mnist, node, simplenet
from recipes.trainer.array_state import read
from recipes.typed import plain
from tests.recipes import forking
from tests.recipes.data.idx_files import write_mnist
from tests.recipes.forking import environment
from tests.recipes.torch_.trainers import result, rows, steps

MODULE = "recipes.tensorflow_.mnist"
SUICIDAL = "tests.recipes.tensorflow_.suicidal"
TWO_DEVICES = "tests.recipes.tensorflow_.two_devices"
NO_DROPOUT = ("train.dropout_conv=0", "train.dropout_dense=0")
JOB = ("amp=o2", "epochs=2", "checkpoint.every=5")
COLUMNS = ("step", "epoch", "loss", "lr", "loss_scale", "skipped", "skipped_total", "grad_norm")


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A short job: 64 images in 8 steps an epoch."""
    return ["data=mnist", f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'))}", "batch=8", "train.lr=0.1"]


def succeed(*words: str) -> None:
    """In this process."""
    assert loop.main("mnist", mnist.train, words) == loop.DONE


def state(folder: Path):
    return read(max((folder / "checkpoints").iterdir()) / "state.npz")


def assert_same_end(one: Path, other: Path) -> None:
    (values, rest), (others, other_rest) = state(one), state(other)
    assert values.keys() == others.keys()
    assert all(values[name].tobytes() == others[name].tobytes() for name in values)
    assert rest["precision"] == other_rest["precision"]
    assert [[row[each] for each in COLUMNS] for row in steps(one)] == [
        [row[each] for each in COLUMNS] for row in steps(other)
    ]
    assert result(one)["eval"] == result(other)["eval"]


def test_the_layers_that_the_launcher_knows_are_those_of_the_network():
    layers = RECIPE.layers(RECIPE.settings())
    built = {layer.name: layer for layer in mnist.network(RECIPE.settings()).layers if layer.weights}
    assert list(built) == [layer.name for layer in layers]
    for layer in layers:
        assert built[layer.name].kernel.shape[-2:] == (layer.inputs, layer.outputs)
        assert numpy.prod(built[layer.name].kernel.shape) == layer.weights


@pytest.fixture(scope="module")
def typed(tmp_path_factory, words):
    """A run as a person types it: how its process ended, and its folder."""
    folder = tmp_path_factory.mktemp("typed") / "run"
    command = [sys.executable, "-m", MODULE, *JOB, *words, f"run={folder}"]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300), folder


def test_a_run_tells_people_what_it_does_and_leaves_the_whole_record(typed):
    ended, folder = typed
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    printed = ended.stdout
    assert "mnist on mnist: 64 images, 16 held out" in printed
    assert "amp=o2: bfloat16 by keras_policy (amp.dtype=auto, on a CPU), no loss scale" in printed
    assert "amp=o2 proved: bfloat16 in 100.0% of forward and 100.0% of backward" in printed
    record = result(folder)
    assert (record["framework"], record["mechanism"], record["attempts"]) == ("tensorflow", "keras_policy", 1)
    assert (record["steps"], record["world_size"], record["determinism"]) == (16, 1, "exact")
    assert record["updates"] == {"attempted": 16, "applied": 16}
    assert record["observed"]["param_dtypes"].keys() == {"float32"}
    assert record["versions"]["tensorflow"]
    events = [row["event"] for row in rows(folder) if "event" in row]
    assert events == ["start", "checkpoint", "eval", "checkpoint", "checkpoint", "eval", "checkpoint", "end"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 17))
    assert sorted(each.name for each in (folder / "checkpoints").iterdir()) == ["step-000000015", "step-000000016"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("amp=o9", "mnist: amp=o9 is not one of o0, o1, o2, o3 (command line)"),
        ("compile=true", "mnist: compile=true is torch.compile; for TensorFlow say xla=true"),
        ("amp.deny=[Conv2d]", "did you mean Conv2D?"),
        ("amp.keep_fp32=[dens3]", "amp.keep_fp32"),
        ("batch=9000", "mnist: batch=9000 is more than the 64 samples of data=mnist"),
        ("accumulate=3", "mnist: batch=8 does not divide by 1 device x accumulate=3; say batch=6 or 9"),
        ("steps_per_execution=0", "mnist: steps_per_execution=0 must be at least 1"),
        ("xla=true", "XLA bypasses the graph rewrite"),
    ],
)
def test_a_wrong_request_gets_one_line_and_leaves_nothing(tmp_path, words, wrong, complaint, capfd):
    key = wrong.partition("=")[0]
    asked = ["amp=o1", *words] if key in ("amp.deny", "xla") else ["amp=o2", *words]
    asked = [word for word in asked if not word.startswith(f"{key}=")]
    assert loop.main("mnist", mnist.train, [*asked, "device=cpu", wrong, f"run={tmp_path / 'run'}"]) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert not (tmp_path / "run").exists()


def test_killed_in_a_save_it_ends_as_if_it_had_not_been(tmp_path, words, typed):
    """With evaluations and dropout."""
    job = [*JOB, *words, f"run={tmp_path}"]
    assert forking.run(SUICIDAL, "mnist", *job, KILL_AT_RENAME="2").returncode == -signal.SIGKILL
    succeed(*job)
    assert_same_end(tmp_path, typed[1])
    record = result(tmp_path)
    assert (record["resumed_from"], record["determinism"], record["observed"]["verdict"]) == (5, "exact", "proved")


def test_killed_in_a_random_step_it_ends_as_if_it_had_not_been(tmp_path):
    """With steps skipped."""
    job = ("simplenet", "amp=o2", "amp.dtype=float16", "steps=24", "batch=16", "train.width=32", "checkpoint.every=5")
    job = (*job, "loss_scale=dynamic", "loss_scale.init=268435456", "loss_scale.growth_every=3")
    whole, killed = (f"run={tmp_path / name}" for name in ("whole", "killed"))
    assert loop.main("simplenet", simplenet.train, [*job[1:], whole]) == loop.DONE
    at = str(random.SystemRandom().randint(6, 24))
    assert forking.run(SUICIDAL, *job, killed, KILL_AT_STEP=at).returncode == -signal.SIGKILL, at
    assert loop.main("simplenet", simplenet.train, [*job[1:], killed]) == loop.DONE
    assert [row["step"] for row in steps(tmp_path / "killed")] == list(range(1, 25))
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    record = result(tmp_path / "killed")
    assert record["resumed_from"] >= 5
    assert (record["determinism"], record["observed"]["verdict"]) == ("exact", "proved")
    assert 0 < record["loss_scale"]["skipped_steps"] < 24


def test_a_stop_is_met_at_a_step_saved_and_gone_on_from(tmp_path, words):
    def stop() -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            if (tmp_path / "metrics.jsonl").exists() and '"step"' in (tmp_path / "metrics.jsonl").read_text():
                (tmp_path / "STOP").touch()
                return
            time.sleep(0.05)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert loop.main("mnist", mnist.train, ["amp=o2", *words, "epochs=4000", f"run={tmp_path}"]) == 85
    stopping.join()
    marker = json.loads((tmp_path / "attempts" / "1" / "stopped.json").read_text())
    assert (tmp_path / marker["checkpoint"]).is_dir()
    assert not (tmp_path / "STOP").exists()
    assert result(tmp_path)["status"] == "stopped"


def test_several_steps_of_one_execution_are_rows_of_their_own_and_the_same_steps(tmp_path, words, typed):
    succeed("amp=o2", *words, "epochs=2", "checkpoint.every=6", "steps_per_execution=5", f"run={tmp_path}")
    one, five = steps(typed[1]), steps(tmp_path)
    assert [row["step"] for row in five] == list(range(1, 17))
    assert [row["loss"] for row in five] == pytest.approx([row["loss"] for row in one], rel=1e-5)
    assert result(tmp_path)["observed"]["verdict"] == "proved", result(tmp_path)["observed"]
    assert [row["step"] for row in rows(tmp_path) if row.get("event") == "checkpoint"] == [6, 12, 16]


def test_another_run_does_not_go_on_as_another_job(tmp_path, words, typed, capfd):
    folder = shutil.copytree(typed[1], tmp_path / "run")
    assert loop.main("mnist", mnist.train, ["amp=o1", *words, "steps=20", f"run={folder}"]) == 2
    assert "was saved with amp.level=o2" in capfd.readouterr().err


def test_the_run_folder_alone_gives_the_settings(tmp_path, words):
    settings = plain(arguments.parse(["amp=o1", *words, "steps=3"], "mnist", "tensorflow").settings)
    plan = {"schema": 2, "settings": settings, "nodes": 1, "processes": 1, "code": "abc"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    succeed(f"run={tmp_path}")
    assert result(tmp_path)["digests"]["code"] == "abc"


def test_a_model_in_another_precision_than_asked_fails_the_run_with_the_reason(tmp_path, words, monkeypatch, capfd):
    from recipes.tensorflow_.precision import grappler

    monkeypatch.setattr(grappler, "switch_on", lambda *_: grappler.switch_off())
    assert loop.main("mnist", mnist.train, ["amp=o1", *words, "steps=4", f"run={tmp_path}"]) == 1
    assert "what ran was not amp=o1" in capfd.readouterr().err
    assert result(tmp_path)["status"] == "failed"


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in steps(folder)]


BOUND = 0.02
"""Of losses in bfloat16, which has 8 bits, that were summed in another order."""


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_go_on_bit_by_bit(tmp_path, words):
    job = ["amp=o1", *words, "steps=10", *NO_DROPOUT, "checkpoint.every=5"]
    one, two, again = (tmp_path / name for name in ("one", "two", "again"))
    succeed(*job, f"run={one}")
    printed = together(*job, f"run={two}")
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["rank", "0", "1"]
    assert losses(one) == pytest.approx(losses(two), rel=BOUND)
    record = result(two)
    assert (record["world_size"], record["observed"]["verdict"]) == (2, "proved")
    assert "on 2 ranks" in record["observed"]["why"]
    shutil.copytree(two, again)
    shutil.rmtree(again / "checkpoints" / "step-000000010")
    assert "resumed after step 5" in together(*job, f"run={again}")
    assert_same_end(again, two)


def test_one_process_trains_on_two_devices_as_on_one(tmp_path, words):
    job = ["amp=o0", *words, "steps=6", *NO_DROPOUT, "train.clip=0.5"]
    succeed(*job, f"run={tmp_path / 'one'}")
    more = ["accumulate=2", "steps_per_execution=3", f"run={tmp_path / 'two'}"]
    ended = forking.run(TWO_DEVICES, *job, *more)
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()[:3]] == ["rank", "0", "1"]
    assert "batch 8 over 2 devices in 2 micro-batches" in ended.stdout
    for column in ("loss", "grad_norm"):
        one, two = ([row[column] for row in steps(tmp_path / name)] for name in ("one", "two"))
        assert one == pytest.approx(two, rel=1e-4)
    record = result(tmp_path / "two")
    assert (record["world_size"], record["observed"]["verdict"]) == (2, "proved")


def is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def together(*words: str) -> str:
    """What two processes of one job, on loopback, tell people."""
    candidates = random.SystemRandom().sample(range(20000, 32000), 100)  # below those of outgoing connections
    workers = ",".join(f"127.0.0.1:{port}" for port in list(filter(is_free, candidates))[:2])
    starts = [
        ["recipes.tensorflow_.node", f"--workers={workers}", f"--number={number}", "-m", MODULE, *words]
        for number in range(2)
    ]
    both = [process.complete() for process in [forking.start(*command) for command in starts]]
    assert [process.returncode for process in both] == [0, 0], both
    return both[0].stdout


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
