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

from amp_launcher import arguments
from amp_launcher.leave import REFUSED
from amp_launcher.loop import checkpoint
from amp_launcher.recipes.gpt import train_torch as gpt
from amp_launcher.recipes.simplenet import train_torch as simplenet
from amp_launcher.torch import loop, state
from amp_launcher.torch.loop import Run
from amp_launcher.torch.trained import masters_of
from amp_launcher.typed import plain
from launcher.executors.verify import recorded_until, write_replay
from launcher.plan.model import ReplayPlan
from tests.amp_launcher.torch.flipping import flip, flipping
from tests.amp_launcher.torch.trainers import result, run, start, steps

SMALL = ("batch=16", "train.width=32", "steps=12", "checkpoint.every=5")
GPT = ("batch=4", "train.layers=1", "train.width=32", "train.heads=2", "train.context=32", "steps=4")
GPT = (*GPT, "train.clip=1", "train.held_out=4", "checkpoint.every=2")
O2 = (*SMALL, "amp=o2")
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
    first = max((number for number in checkpoint.steps(original / "checkpoints") if number < step), default=0)
    replay = ReplayPlan(run="the run", first=first, step=step)
    write_replay(original, folder, replay, bool(recorded_until(original)))
    settings = arguments.parse([*words, RECORD], recipe, "torch").settings
    plan = {"schema": 2, "settings": plain(settings), "replay": dataclasses.asdict(replay)}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def verdict(folder: Path) -> dict[str, Any]:
    """That of the replay laid down in this folder, which runs in this process."""
    code = loop.main("simplenet", simplenet.train, [f"run={folder}"])
    record = result(folder)
    values: dict[str, Any] = record["verify"]
    assert code == (loop.DONE if values["verdict"] == "same" else 1)
    assert values["verdict"] == "same" or record["reason"] == f"{values['verdict']}: {values['why']}"
    return values


def replayed(original: Path, folder: Path, words: tuple[str, ...] = O2, step: int = 12) -> dict[str, Any]:
    return verdict(laid(original, folder, words, step))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("recorded") / "run", *O2, RECORD)


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("step", "why"), [(12, "steps 11 to 12"), (11, "step 11"), (7, "steps 1 to 7")])
def test_a_sound_run_is_the_same_from_its_checkpoint_or_from_its_beginning(
    tmp_path: Path, recorded: Path, step: int, why: str
) -> None:
    before = times(recorded)
    values = replayed(recorded, tmp_path / "replay", step=step)
    assert (values["verdict"], values["recorded"], values["difference"]) == ("same", True, None)
    assert values["why"].startswith(f"{why} of the run, replayed from ")
    assert times(recorded) == before


@pytest.mark.parametrize(("at", "step"), [(11, 12), (3, 7)])
def test_the_first_step_and_the_one_tensor_with_a_flipped_bit_are_named(tmp_path: Path, at: int, step: int) -> None:
    original = train(tmp_path / "run", *O2, RECORD, by=flipping(simplenet.train, at, WEIGHT))
    values = replayed(original, tmp_path / "replay", step=step)
    assert values["verdict"] == "differs"
    expected = {"step": at, "rank": 0, "tensor": f"model.{WEIGHT}", "tensors": 1, "others": []}
    assert {key: values["difference"][key] for key in expected} == expected
    assert values["why"] == f"step {at} of the run is the first that differs, in model.{WEIGHT} (1 of 36 tensors)"


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
    difference = result(folder)["verify"]["difference"]
    expected = {"step": 3, "tensor": "optimizer.embedding.weight.exp_avg_sq", "tensors": 1}
    assert {key: difference[key] for key in expected} == expected


def test_without_a_record_the_checkpoints_are_compared(tmp_path: Path) -> None:
    original = train(tmp_path / "run", *O2)
    assert not (original / "verify").exists()
    values = replayed(original, tmp_path / "same")
    assert (values["verdict"], values["recorded"]) == ("same", False)
    saved = original / "checkpoints" / "step-000000012"
    values = state.read(saved / "state.pt")
    flip(masters_of(values)[WEIGHT])
    torch.save(values, saved / "state.pt")  # as of a fault before it was saved
    content = (saved / "state.pt").read_bytes()
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["state.pt"].update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    (saved / "manifest.json").write_text(json.dumps(manifest))
    message = f"the checkpoint of step 12 of the run differs in masters.{WEIGHT} (1 of 36 tensors)"
    assert replayed(original, tmp_path / "differs")["why"].startswith(message)
    (saved / "state.pt").write_bytes(content[:-1])
    values = replayed(original, tmp_path / "damaged")
    assert values["verdict"] == "not comparable" and "the checkpoint of step 12 is damaged" in values["why"]


def test_of_damaged_checkpoints_the_next_older_one_is_replayed_from(tmp_path: Path) -> None:
    words = (*O2, "checkpoint.keep=3")
    original = train(tmp_path / "run", *words, RECORD)
    (original / "checkpoints" / "step-000000010" / "state.pt").write_bytes(b"torn")
    values = replayed(original, tmp_path / "replay", words)
    assert (values["verdict"], values["first"]) == ("same", 5), values["why"]
    assert "steps 6 to 12 of the run, replayed from the checkpoint of step 5, are bit-identical" in values["why"]
    (original / "checkpoints" / "step-000000005" / "manifest.json").unlink()
    values = replayed(original, tmp_path / "from the start", words)
    assert "steps 1 to 12 of the run, replayed from its beginning, are bit-identical" in values["why"]


def test_another_number_of_threads_is_not_comparable(tmp_path: Path, recorded: Path) -> None:
    count = torch.get_num_threads()
    torch.set_num_threads(count + 1)
    try:
        values = replayed(recorded, tmp_path / "replay")
    finally:
        torch.set_num_threads(count)
    assert values["verdict"] == "not comparable"
    assert values["why"] == f"number of threads: {count} in the run, {count + 1} in the replay"
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
    folder = laid(recorded, tmp_path / "replay", O2, 12)
    record = folder / "original" / "verify" / "rank-0.jsonl"
    header, *rows = record.read_text().splitlines(keepends=True)
    values = json.loads(header)
    for key, value in change.items():
        values["facts"][key] = {**values["facts"][key], **value} if isinstance(value, dict) else value
    record.unlink()  # a link to the run's own
    record.write_text("".join([json.dumps(values) + "\n", *rows]))
    values = verdict(folder)
    assert values["verdict"] == "not comparable" and why in values["why"]


def test_the_rank_of_a_difference_is_named(tmp_path: Path) -> None:
    words = [*O2, RECORD]
    ended = run([*words, f"run={tmp_path / 'run'}"], 2, PROGRAM, FLIP_AT="11", FLIP_RANK="1", FLIP=WEIGHT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ended = run([f"run={laid(tmp_path / 'run', tmp_path / 'replay', tuple(words[:-1]), 12)}"], 2, PROGRAM)
    assert ended.returncode != 0
    message = f"step 11 of the run is the first that differs, in model.{WEIGHT} on rank 1 (1 of 36"
    assert result(tmp_path / "replay")["verify"]["why"].startswith(message)


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


def test_a_resumed_run_has_each_step_in_its_record_once(tmp_path: Path) -> None:
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
