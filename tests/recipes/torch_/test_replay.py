"""The replay of a run's steps says whether the run repeats bit by bit, and where it does not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.executors.verify import lay_down, recorded_until
from launcher.plan.model import ReplayPlan
from recipes import arguments
from recipes.torch_ import gpt, loop, simplenet, state
from recipes.torch_.loop import Run
from recipes.trainer import checkpoint
from recipes.trainer.run import REFUSED
from recipes.typed import plain
from tests.recipes.torch_.flipping import flip, flipping
from tests.recipes.torch_.trainers import result, run, start, steps

SMALL = ("batch=16", "train.width=32", "steps=12", "checkpoint.every=5")
GPT = ("batch=4", "train.layers=1", "train.width=32", "train.heads=2", "train.context=32", "steps=4")
GPT = (*GPT, "train.clip=1", "train.held_out=4", "checkpoint.every=2")
RECORD = "verify.record=true"
PROGRAM = (str(Path(__file__).with_name("flipping.py")),)
WEIGHT = "linears.3.weight"


def train(folder: Path, *words: str, by: Callable[[Run], None] = simplenet.train, recipe: str = "simplenet") -> Path:
    """A run in this process."""
    assert loop.main(recipe, by, [*words, f"run={folder}"]) == loop.DONE
    return folder


def laid(original: Path, folder: Path, words: tuple[str, ...], step: int, recipe: str = "simplenet") -> Path:
    """The folder of a replay up to `step`, as the launcher lays it down."""
    folder.mkdir()
    first = max((each for each in checkpoint.steps(original / "checkpoints") if each < step), default=0)
    replay = ReplayPlan(run="the run", first=first, step=step)
    lay_down(original, folder, replay, bool(recorded_until(original)))
    settings = arguments.parse([*words, RECORD], recipe, "torch").settings
    plan = {"schema": 2, "settings": plain(settings), "replay": dataclasses.asdict(replay)}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def replayed(original: Path, folder: Path, words: tuple[str, ...], step: int) -> dict[str, Any]:
    """The verdict of a replay in this process."""
    code = loop.main("simplenet", simplenet.train, [f"run={laid(original, folder, words, step)}"])
    found: dict[str, Any] = result(folder)["verify"]
    assert code == (loop.DONE if found["verdict"] == "same" else 1)
    assert found["verdict"] == "same" or result(folder)["reason"] == f"{found['verdict']}: {found['why']}"
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("recorded") / "run", *SMALL, "amp=o2", RECORD)


@pytest.mark.parametrize(("step", "why"), [(12, "steps 11 to 12"), (11, "step 11"), (7, "steps 1 to 7")])
def test_a_sound_run_is_the_same_from_its_checkpoint_or_from_its_beginning(
    tmp_path: Path, recorded: Path, step: int, why: str
) -> None:
    before = {path: path.stat() for path in sorted(recorded.rglob("*")) if path.is_file()}
    found = replayed(recorded, tmp_path / "replay", (*SMALL, "amp=o2"), step)
    assert found["verdict"] == "same" and found["recorded"] and found["difference"] is None
    assert found["why"].startswith(f"{why} of the run, replayed from ")
    after = {path: path.stat() for path in sorted(recorded.rglob("*")) if path.is_file()}
    assert {path: each.st_mtime_ns for path, each in after.items()} == {
        path: each.st_mtime_ns for path, each in before.items()
    }


@pytest.mark.parametrize(("at", "step"), [(11, 12), (3, 7)])
def test_the_first_step_and_the_one_tensor_with_a_flipped_bit_are_named(tmp_path: Path, at: int, step: int) -> None:
    original = train(tmp_path / "run", *SMALL, "amp=o2", RECORD, by=flipping(simplenet.train, at, WEIGHT))
    found = replayed(original, tmp_path / "replay", (*SMALL, "amp=o2"), step)
    assert found["verdict"] == "differs"
    named = {key: found["difference"][key] for key in ("step", "rank", "tensor", "tensors", "others")}
    assert named == {"step": at, "rank": 0, "tensor": f"model.{WEIGHT}", "tensors": 1, "others": []}
    assert found["why"] == f"step {at} of the run is the first that differs, in model.{WEIGHT} (1 of 36 tensors)"


def test_the_state_of_an_optimizer_is_named_by_its_parameter(tmp_path: Path) -> None:
    words = (*GPT, "amp=o1", RECORD)

    def sabotaged(run: Run) -> None:
        fit = run.fit

        def fit_and_flip(*, step: Callable[[Any], Any], optimizers: Any, **others: Any) -> None:
            done = 0

            def flip_after(batch: Any) -> Any:
                nonlocal done
                outcome, done = step(batch), done + 1
                if done == 3:
                    flip(next(iter(optimizers[0].state.values()))["exp_avg_sq"])
                return outcome

            fit(step=flip_after, optimizers=optimizers, **others)

        run.fit = fit_and_flip  # type: ignore[method-assign]
        gpt.train(run)

    original = train(tmp_path / "run", *words, by=sabotaged, recipe="gpt")
    folder = laid(original, tmp_path / "replay", words[:-1], 4, "gpt")
    assert loop.main("gpt", gpt.train, [f"run={folder}"]) == 1
    found = result(folder)["verify"]["difference"]
    assert (found["step"], found["tensor"], found["tensors"]) == (3, "optimizer.embedding.weight.exp_avg_sq", 1)


def test_without_a_record_the_checkpoints_are_compared(tmp_path: Path) -> None:
    original = train(tmp_path / "run", *SMALL, "amp=o2")
    assert not (original / "verify").exists()
    found = replayed(original, tmp_path / "same", (*SMALL, "amp=o2"), 12)
    assert (found["verdict"], found["recorded"]) == ("same", False)
    place = original / "checkpoints" / "step-000000012"
    saved = state.read(place / "state.pt")
    flip(saved["precision"]["masters"][WEIGHT])
    torch.save(saved, place / "state.pt")  # as a fault before it was saved would have it
    content = (place / "state.pt").read_bytes()
    manifest = json.loads((place / "manifest.json").read_text())
    digest = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    manifest["files"]["state.pt"].update(digest)
    (place / "manifest.json").write_text(json.dumps(manifest))
    found = replayed(original, tmp_path / "differs", (*SMALL, "amp=o2"), 12)
    assert found["why"].startswith(
        f"the checkpoint of step 12 of the run differs in masters.{WEIGHT} (1 of 36 tensors)"
    )
    (place / "state.pt").write_bytes(content[:-1])
    found = replayed(original, tmp_path / "damaged", (*SMALL, "amp=o2"), 12)
    assert found["verdict"] == "not comparable" and "the checkpoint of step 12 is damaged" in found["why"]


def test_of_damaged_checkpoints_the_next_older_one_is_replayed_from(tmp_path: Path) -> None:
    words = (*SMALL, "amp=o2", "checkpoint.keep=3")
    original = train(tmp_path / "run", *words, RECORD)
    (original / "checkpoints" / "step-000000010" / "state.pt").write_bytes(b"torn")
    found = replayed(original, tmp_path / "replay", words, 12)
    assert (found["verdict"], found["first"]) == ("same", 5), found["why"]
    assert found["why"].startswith(
        "steps 6 to 12 of the run, replayed from the checkpoint of step 5, are bit-identical"
    )
    (original / "checkpoints" / "step-000000005" / "manifest.json").unlink()
    found = replayed(original, tmp_path / "from the start", words, 12)
    assert found["why"].startswith("steps 1 to 12 of the run, replayed from its beginning, are bit-identical")


def test_another_number_of_threads_is_not_comparable(tmp_path: Path, recorded: Path) -> None:
    count = torch.get_num_threads()
    torch.set_num_threads(count + 1)
    try:
        found = replayed(recorded, tmp_path / "replay", (*SMALL, "amp=o2"), 12)
    finally:
        torch.set_num_threads(count)
    assert found["verdict"] == "not comparable"
    assert found["why"] == f"number of threads: {count} in the run, {count + 1} in the replay"
    assert steps(tmp_path / "replay") == []  # nothing was replayed
    assert not [name for name in ("checkpoints", "original") if (tmp_path / "replay" / name).exists()]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cpu": "another"}, "CPU: another in the run, "),
        ({"device": "NVIDIA H100"}, "device: NVIDIA H100 in the run, cpu in the replay"),
        ({"data": "sha256:00"}, "data digest: sha256:00 in the run, "),
        ({"code": "00"}, "code digest: 00 in the run, "),
        ({"versions": {"torch": "2.4.0"}}, "torch: 2.4.0 in the run, "),
        ({"exact": False}, "the run is best_effort"),
    ],
)
def test_another_place_is_not_comparable(tmp_path: Path, recorded: Path, change: dict[str, Any], why: str) -> None:
    folder = laid(recorded, tmp_path / "replay", (*SMALL, "amp=o2"), 12)
    record = folder / "original" / "verify" / "rank-0.jsonl"
    header, *rows = record.read_text().splitlines(keepends=True)
    values = json.loads(header)
    for key, value in change.items():
        values["facts"][key] = {**values["facts"][key], **value} if isinstance(value, dict) else value
    record.unlink()  # a link to the run's own
    record.write_text("".join([json.dumps(values) + "\n", *rows]))
    assert loop.main("simplenet", simplenet.train, [f"run={folder}"]) == 1
    found = result(folder)["verify"]
    assert found["verdict"] == "not comparable" and why in found["why"]


def test_a_rank_of_its_own_is_named(tmp_path: Path) -> None:
    words = ["amp=o2", *SMALL, RECORD]
    ended = run([*words, f"run={tmp_path / 'run'}"], 2, PROGRAM, FLIP_AT="11", FLIP_RANK="1", FLIP=WEIGHT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ended = run([f"run={laid(tmp_path / 'run', tmp_path / 'replay', tuple(words[:-1]), 12)}"], 2, PROGRAM)
    assert ended.returncode != 0
    found = result(tmp_path / "replay")["verify"]
    assert found["why"].startswith(
        f"step 11 of the run is the first that differs, in model.{WEIGHT} on rank 1 (1 of 36"
    )


def test_a_checkpoint_of_another_schema_is_refused_on_every_rank(tmp_path: Path) -> None:
    words = ["amp=o0", *SMALL[:-1], "checkpoint.every=12"]
    ended = run([*words, f"run={tmp_path / 'run'}"], 2, PROGRAM)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (manifest,) = (tmp_path / "run").glob("checkpoints/*/manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": checkpoint.SCHEMA - 1}))
    started = start([f"run={laid(tmp_path / 'run', tmp_path / 'replay', tuple(words), 12)}"], 2, PROGRAM)
    started.wait()
    assert [rank.exitcode for rank in started.ranks] == [REFUSED, REFUSED], started.printed("err")
    first, other = started.printed("err")
    assert "step-000000012 is of schema" in first and "Traceback" not in first
    assert other == ""


def test_a_run_that_goes_on_has_each_step_in_its_record_once(tmp_path: Path) -> None:
    words = (*SMALL, "amp=o2", RECORD)
    train(tmp_path, *(word for word in words if not word.startswith("steps")), "steps=6")
    path = tmp_path / "verify" / "rank-0.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    with open(path, "a") as stream:  # steps after the last checkpoint, the last of them not written to its end
        stream.write(json.dumps({**row, "step": 7}) + '\n{"step": 8, "lo')
    assert recorded_until(tmp_path) == 7
    train(tmp_path, *words)
    numbers = [values["step"] for values in map(json.loads, path.read_text().splitlines()) if "step" in values]
    assert numbers == list(range(1, 13))
