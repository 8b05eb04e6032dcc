"""Checkpoints of shards: whole or not there, and taken up by any number of ranks."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from amp_launcher.loop import checkpoint
from amp_launcher.torch import export, shards
from tests.amp_launcher.forking import Forked
from tests.amp_launcher.torch import trainers
from tests.amp_launcher.torch.sharded_net import Net

TRAINER = str(Path(__file__).with_name("sharded_trainer.py"))
STEPS = 12
CALLS = 30
"""Into the file system, by rank 0 in a save."""


def start(ranks: int, folder: Path, steps: int, **more: str) -> Forked:
    """The trainer's ranks. Nobody ends the others when one has gone."""
    return trainers.start([str(folder), str(steps)], ranks, [TRAINER], **more)


def end(job: Forked) -> tuple[list[int | None], list[str], list[str]]:
    """Exit codes and what each rank printed. A rank that hangs fails the test."""
    job.wait()
    return [rank.exitcode for rank in job.ranks], job.printed("out"), job.printed("err")


def train(ranks: int, folder: Path, steps: int, **more: str) -> dict[str, Any]:
    codes, out, err = end(start(ranks, folder, steps, **more))
    assert codes == [0] * ranks, err
    printed: dict[str, Any] = json.loads(out[0].splitlines()[-1])
    return printed


def weights(printed: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values) for name, values in printed["weights"].items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> dict[str, Any]:
    """A run of one process, without shards."""
    return train(1, tmp_path_factory.mktemp("one"), STEPS, FSDP="0")


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Path:
    """Checkpoints of four ranks."""
    folder = tmp_path_factory.mktemp("four") / "checkpoints"
    printed = train(4, folder, 4)
    assert printed["exact"]
    (folder.parent / "printed.json").write_text(json.dumps(printed))
    return folder


@pytest.fixture
def copied(tmp_path, four) -> Path:
    """A copy of the checkpoints of four ranks."""
    return shutil.copytree(four, tmp_path / "checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize(
    "attempts",
    [[(2, "1", 7), (1, "1", 9), (4, "1", STEPS)], [(2, "0", 6), (2, "1", 8), (1, "0", 10), (2, "1", STEPS)]],
    ids=["to other ranks", "to whole weights and back"],
)
def test_a_run_saved_on_four_ranks_goes_on(copied, one, attempts):
    losses = []
    for ranks, sharded, steps in attempts:
        printed = train(ranks, copied, steps, FSDP=sharded)
        assert not printed["exact"], "other ranks add up gradients in another order"
        losses += printed["losses"]
    assert losses == pytest.approx(one["losses"][4:], abs=1e-5)
    torch.testing.assert_close(weights(printed), weights(one), atol=1e-5, rtol=0)
    last = copied / f"step-{STEPS:09d}"
    manifest = json.loads((last / "manifest.json").read_text())
    assert manifest["shards"] == ranks
    assert {"state.pt", f"__{ranks - 1}_0.distcp", shards.INDEX} <= set(manifest["files"])
    assert all((last / name).is_file() for name in manifest["files"])


@pytest.mark.slow
def test_a_rank_killed_in_a_save_and_later_all_at_any_moment_change_no_bit(tmp_path):
    steps = 40
    whole = train(2, tmp_path / "whole", steps)
    folder = tmp_path / "killed"
    moment = random.Random(seed := time.time_ns())
    rank, calls = moment.randrange(2), moment.randrange(CALLS)
    codes, _, err = end(start(2, folder, steps, KILL=f"{rank}:3:{calls}"))
    assert (codes[rank], codes[1 - rank]) == (-signal.SIGKILL, 1), f"seed {seed}: {err}"
    assert checkpoint.newest(folder, pytest.fail).step >= 2, f"seed {seed}"
    job = start(2, folder, steps)
    while max(checkpoint.steps(folder)) < 5:
        assert all(rank.exitcode is None for rank in job.ranks)
        time.sleep(0.005)
    time.sleep(moment.random() * 0.3)
    job.kill()
    last = train(2, folder, steps)
    assert last["exact"]
    assert last["losses"] == whole["losses"][last["from"] :]
    assert last["weights"] == whole["weights"]
    assert names(folder) == names(tmp_path / "whole")


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(tmp_path):
    broken = "raise:0:2,raise:1:3,disk:0:4,disk:1:5"
    codes, out, err = end(start(2, tmp_path / "checkpoints", 5, BREAK=broken))
    assert codes == [0, 0], err
    assert "step 2 on rank 0: ZeroDivisionError" in out[0]
    assert "step 2 on rank 1: FailedElsewhere: on rank 0, ZeroDivisionError" in out[1]
    assert "step 3 on rank 0: FailedElsewhere: on rank 1, ZeroDivisionError" in out[0]
    assert "step 4 on rank 0: OSError: [Errno 27] File too large" in out[0]
    assert "step 5 on rank 0: FailedElsewhere: on rank 1, OSError: [Errno 27] File too large" in out[0]
    assert "step 5 on rank 1: OSError: [Errno 27] File too large" in out[1]
    assert names(tmp_path / "checkpoints") == ["step-000000001"]


@pytest.mark.parametrize(("sharded", "now"), [("1", "has shards on 2 ranks"), ("0", "has whole weights on 2 ranks")])
def test_shards_of_another_model_are_refused_in_words_that_name_both(copied, sharded, now):
    codes, _, err = end(start(2, copied, 8, OTHER="1", FSDP=sharded))
    assert codes == [2, 2]
    assert f"was saved as shards of 4 ranks, and this run {now}; it can't go on from it: first.bias" in err[0]


@pytest.mark.parametrize("name", ["__2_0.distcp", shards.INDEX, "state.pt"])
def test_shards_of_which_a_file_is_broken_or_gone_are_passed_over(copied, name):
    path = copied / "step-000000004" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    warnings: list[str] = []
    assert checkpoint.newest(copied, warnings.append).step == 3
    path.unlink()
    assert checkpoint.newest(copied, warnings.append).step == 3
    assert [name in warning for warning in warnings] == [True, True]


def test_an_index_with_code_in_it_or_another_folders_file_is_not_read(tmp_path, copied):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = copied / "step-000000004"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert shards.describe(folder, files)["model/first.weight"].size == (7, 12)
    with pytest.raises(ValueError, match=r"files that are not of its checkpoint: __0_0\.distcp"):
        shards.describe(folder, [name for name in files if name != "__0_0.distcp"])
    (folder / shards.INDEX).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"names posix\.mkdir"):
        shards.describe(folder, files)
    assert not (tmp_path / "ran").exists()


def index(folder: Path, *globals_: tuple[str, str]) -> None:
    """An index that is a tuple of what these names stand for."""
    names = b"".join(b"c" + "\n".join(name).encode() + b"\n" for name in globals_)
    (folder / shards.INDEX).write_bytes(b"\x80\x02(" + names + b"t.")


@pytest.mark.parametrize("name", ["dataclass", "field", "Enum", "Sequence"])
def test_an_index_is_made_of_no_function_that_its_classes_module_imports(tmp_path, name):
    """`dataclass` executes the names of a class's fields, which an index may set."""
    index(tmp_path, ("torch.distributed.checkpoint.metadata", name))
    with pytest.raises(ValueError, match=rf"names torch\.distributed\.checkpoint\.metadata\.{name}"):
        shards.describe(tmp_path, [])


def test_an_index_of_another_python_is_read(tmp_path):
    for module in ("pathlib", "pathlib._local"):  # of 3.13 alone
        index(tmp_path, (module, "PosixPath"))
        with pytest.raises(ValueError, match="can't be read: 'tuple' object"):  # so its names are known
            shards.describe(tmp_path, [])


def test_shards_are_exported_as_a_plain_model_loads_them(tmp_path, four):
    assert export.main([f"run={four.parent}", f"file={tmp_path / 'file'}", "step=4"]) == 0
    exported = load_file(tmp_path / "file")
    net = Net(7)
    net.load_state_dict(exported)
    assert net.third.weight is net.second.weight
    assert exported["norm.num_batches_tracked"].dtype == torch.int64
    trained = weights(json.loads((four.parent / "printed.json").read_text()))
    assert all(torch.equal(values, trained[name]) for name, values in net.state_dict().items())
