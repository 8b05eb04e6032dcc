from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.campaign import language
from benchmarks.campaign.aims import judge
from benchmarks.campaign.recipes import simplenet_flops, task
from benchmarks.campaign.rows import Bench, Budget, Row, Task
from recipes import arguments

REPOSITORY = Path(__file__).parents[2]
TINY = Bench(device=torch.device("cpu"), tiny=True, seconds=0.1)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a rehearsal prints, and its file."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    before = sorted((REPOSITORY / "benchmarks/results").iterdir())
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", str(path)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted((REPOSITORY / "benchmarks/results").iterdir()) == before
    return ended.stdout, json.loads(path.read_text())


@pytest.mark.slow
def test_a_rehearsal_runs_every_part_to_its_end_and_says_that_it_is_one(rehearsal: tuple[str, dict[str, Any]]) -> None:
    said, document = rehearsal
    assert said.startswith(gpu.REHEARSAL)
    assert document["rehearsal"] and document["aims"] == []
    with_value = {row["part"] for row in document["rows"] if row["value"] is not None or row["passed"]}
    recipes = {"simplenet", "resnet50", "efficientnet", "gan", "gpt"}
    assert with_value == {"ceiling", "check", *recipes, "by turns", "kernels"}
    assert {row["left_out"] for row in document["rows"]} == {"", "not rehearsed"}


@pytest.mark.slow
def test_what_ran_in_it_was_proved_and_every_check_passed(rehearsal: tuple[str, dict[str, Any]]) -> None:
    _, document = rehearsal
    assert {row["more"]["verdict"] for row in document["rows"] if "verdict" in row["more"]} == {"proved"}
    assert all(row["passed"] for row in document["rows"] if row["part"] == "check" and not row["left_out"])


def row(part: str, name: str, value: float, **more: Any) -> Row:
    return Row(part=part, name=name, value=value, more=more)


def test_aims_are_held_not_held_or_not_measured() -> None:
    rows = [
        row("ceiling", "bfloat16 products", 800.0),
        row("simplenet", "o0 ieee", 100.0),
        row("simplenet", "o1", 1300.0),
        row("simplenet", "o2", 1200.0, tflops=640.0),
        row("by turns", "simplenet o1 / o2", 0.9),
    ]
    found = {each.claim: (each.verdict, each.ratio) for each in judge(rows)}
    assert found["simplenet at o2 at least 10 times IEEE float32"] == ("held", 12.0)
    assert found["simplenet at o2 at least 75% of the measured bfloat16 ceiling"] == ("held", 0.8)
    assert found["simplenet: o2 never slower than o1"] == ("not held", 0.9)
    assert found["ResNet-50 at o2 at least twice TF32"] == ("not measured", None)


def test_every_aim_reads_rows_that_the_campaign_has() -> None:
    rows = [Row(part=each.part, name=each.name, value=1.0, more={"tflops": 1.0}) for each in gpu.tasks()]
    assert all(each.ratio is not None for each in judge(rows))


def test_what_comes_too_late_is_left_out_and_says_so() -> None:
    now = [0.0]
    budget = Budget(20.0, clock=lambda: now[0])
    task = Task(part="p", name="n", run=lambda bench: [row("p", "n", 1.0)], estimate=15.0)
    assert budget.run(task, TINY)[0].value == 1.0
    now[0] = 6.0
    assert budget.run(task, TINY)[0].left_out == "out of time: 14 s were left"


@pytest.mark.parametrize(
    ("error", "says", "broken"),
    [(torch.cuda.OutOfMemoryError("x"), "out of memory", False), (ValueError("odd"), "ValueError: odd", True)],
)
def test_a_row_that_fails_costs_no_other(error: Exception, says: str, broken: bool) -> None:
    def fail(bench: Bench) -> list[Row]:
        raise error

    (found,) = Budget(60).run(Task(part="p", name="n", run=fail), TINY)
    assert (found.left_out, gpu.is_broken(found)) == (says, broken)


def test_a_row_in_a_process_of_its_own_is_the_same_row() -> None:
    (found,) = gpu.apart(task("simplenet", "o2", "amp=o2", estimate=300)).run(TINY)
    assert (found.part, found.name, found.more["verdict"]) == ("simplenet", "o2", "proved")
    assert found.value and found.value > 0


def test_a_process_of_its_own_gets_no_longer_than_there_is() -> None:
    late = dataclasses.replace(TINY, end=0.0)
    (found,) = Budget(60).run(gpu.apart(task("simplenet", "o2", "amp=o2")), late)
    assert (found.left_out, gpu.is_broken(found)) == ("out of time: not done in 1 s", False)


def test_whatever_ends_it_the_rows_that_were_printed_are_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(bench: Bench) -> list[Row]:
        raise KeyboardInterrupt

    tasks = [
        Task(part="p", name="first", run=lambda bench: [row("p", "first", 1.0)]),
        Task(part="p", name="second", run=killed),
    ]
    monkeypatch.setattr(gpu, "tasks", lambda: tasks)
    path = tmp_path / "gpu.json"
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--device", "cpu", "--tiny", "--out", str(path)])
    found = json.loads(path.read_text())
    assert ([each["name"] for each in found["rows"]], found["ended"]) == (["first"], False)
    assert "first" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["gpu.json"]


def test_with_its_gpu_broken_a_process_leaves_what_is_to_come_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "tasks", lambda: [Task(part="p", name="n", run=lambda bench: [row("p", "n", 1.0)])])
    monkeypatch.setattr(Bench, "usable", lambda self: False)
    monkeypatch.setattr(gpu, "apart", lambda task: dataclasses.replace(task, run=lambda bench: [row("p", "n", 2.0)]))
    assert gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "gpu.json")]) == 0
    assert json.loads((tmp_path / "gpu.json").read_text())["rows"][0]["value"] == 2.0


def test_a_loss_that_is_not_finite_is_told() -> None:
    assert "NOT FINITE" in gpu.line(row("resnet50", "o2", 1.0, loss=[7.0, None], finite=False))


def test_published_gains_stand_beside_the_measured_one() -> None:
    gemm = "fp8-rowwise"
    found = gpu.line(row("gpt", language.gain(gemm), 1.2, ratios=[1.1, 1.3], published_gains=language.PUBLISHED[gemm]))
    assert "1.100 to 1.300, published: 1.10 (Llama3-8B, 8 H100" in found


def test_a_number_format_that_the_device_lacks_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "capability_of", lambda device: (8, 0))
    on_a100 = dataclasses.replace(TINY, device=torch.device("cuda"))
    tasks = [each for each in (*language.tasks(), *language.compiled()) if "fp8" in each.name]
    rows = [found for each in tasks for found in each.run(on_a100)]
    assert len(rows) == 2 * len(language.GEMMS)
    assert all("needs compute capability 8.9" in each.left_out and not gpu.is_broken(each) for each in rows)


def test_simplenets_operations_are_those_of_its_products() -> None:
    settings = arguments.parse(["amp=o2", "batch=2048"], "simplenet", "torch").settings
    assert simplenet_flops(settings) == 26 * 2 * 2048 * 8192**2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "cpu"], "needs --tiny"),
        (["--device", "cpu", "--tiny", "--save"], "are not kept"),
        (["--device", "cpu", "--tiny", "--only", "resnet"], "the parts are ceiling, check, simplenet"),
    ],
)
def test_wrong_words_get_an_answer(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
