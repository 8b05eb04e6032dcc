from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_launcher import arguments
from amp_launcher.torch.precision.masters import Masters
from benchmarks import gpu
from benchmarks.campaign import checks, language
from benchmarks.campaign.aims import judge
from benchmarks.campaign.recipes import simplenet_flops, task
from benchmarks.campaign.rows import Bench, Budget, Row, Task
from tests.amp_launcher.torch import loops

TINY = Bench(device=torch.device("cpu"), tiny=True, seconds=0.1)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a rehearsal prints, and its file."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    results = Path(gpu.__file__).parent / "results"
    before, printed = sorted(results.iterdir()), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert gpu.main(["--device", "cpu", "--tiny", "--out", str(path)]) == 0, printed.getvalue()
    assert sorted(results.iterdir()) == before
    return printed.getvalue(), json.loads(path.read_text())


def test_a_rehearsal_runs_every_part_to_its_end_and_proves_and_checks_it(rehearsal: tuple[str, dict[str, Any]]) -> None:
    printed, document = rehearsal
    assert printed.startswith(gpu.REHEARSAL)
    assert document["rehearsal"] and document["ended"] and document["aims"] == []
    rows = document["rows"]
    recipes = {"simplenet", "resnet50", "efficientnet", "gan", "gpt"}
    with_value = {row["part"] for row in rows if row["value"] is not None or row["passed"]}
    assert with_value == {"ceiling", "check", "training", *recipes, "by turns", "kernels"}
    assert {row["left_out"] for row in rows} == {"", "not rehearsed"}
    apart = {(task.part, task.name) for task in gpu.APART if task.rehearsed}
    assert [row["value"] > 0 for row in rows if (row["part"], row["name"]) in apart] == [True] * len(apart) != []
    assert {row["more"]["verdict"] for row in rows if "verdict" in row["more"]} == {"proved"}
    assert all(row["passed"] for row in rows if row["part"] in ("check", "training") and not row["left_out"])


@pytest.mark.parametrize("grad_dtype", [True, False])
def test_the_bytes_expected_of_a_parameter_are_those_that_a_step_holds(
    grad_dtype: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `grad_dtype`, which came with torch 2.10, and without."""
    if grad_dtype and not checks.HAS_GRAD_DTYPE:
        pytest.skip("came with torch 2.10")
    monkeypatch.setattr(Masters, "can_share_grads", lambda masters, optimizer: grad_dtype)
    expected = checks.bytes_of_parameter(grad_dtype)
    for level in ("o0", "o2", "o3"):
        precision = loops.of(level, "auto" if level == "o0" else "bfloat16")
        net = precision.prepare(torch.nn.Linear(64, 64, bias=False))
        optimizer = precision.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
        held: dict[int, int] = {}

        def count(optimizer: Any, *given: Any, net: Any = net, held: dict[int, int] = held) -> None:
            for weight in (net.weight, *optimizer.param_groups[0]["params"]):
                held |= {part.data_ptr(): part.nbytes for part in (weight, weight.grad)}

        optimizer.register_step_pre_hook(count)
        loops.step(precision, net, optimizer, torch.ones(2, 64))
        assert sum(held.values()) / 64**2 == expected[level], level


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
    aims = {aim.claim: (aim.verdict, aim.ratio) for aim in judge(rows)}
    assert aims["simplenet at o2 at least 10 times IEEE float32"] == ("held", 12.0)
    assert aims["simplenet at o2 at least 75% of the measured bfloat16 ceiling"] == ("held", 0.8)
    assert aims["simplenet: o2 never slower than o1"] == ("not held", 0.9)
    assert aims["ResNet-50 at o2 at least twice TF32"] == ("not measured", None)


def test_every_aim_reads_rows_that_the_campaign_has() -> None:
    rows = [row(task.part, task.name, 1.0, tflops=1.0) for task in gpu.tasks()]
    assert all(aim.ratio is not None for aim in judge(rows))


def test_what_comes_too_late_is_left_out_and_says_so() -> None:
    now = [0.0]
    budget = Budget(20.0, clock=lambda: now[0])
    task = Task(part="p", name="n", run=lambda bench: [row("p", "n", 1.0)], estimate=15.0)
    assert budget.run(task, TINY)[0].value == 1.0
    now[0] = 6.0
    assert budget.run(task, TINY)[0].left_out == "out of time: 14 s were left"


@pytest.mark.parametrize(
    ("error", "message", "broken"),
    [(torch.cuda.OutOfMemoryError("x"), "out of memory", False), (ValueError("odd"), "ValueError: odd", True)],
)
def test_a_row_that_fails_costs_no_other(error: Exception, message: str, broken: bool) -> None:
    def fail(bench: Bench) -> list[Row]:
        raise error

    (failed,) = Budget(60).run(Task(part="p", name="n", run=fail), TINY)
    assert (failed.left_out, gpu.is_broken(failed)) == (message, broken)


def test_a_process_of_its_own_gets_no_longer_than_there_is() -> None:
    late = dataclasses.replace(TINY, end=0.0)
    (left_out,) = Budget(60).run(gpu.apart(task("simplenet", "o2", "amp=o2")), late)
    assert (left_out.left_out, gpu.is_broken(left_out)) == ("out of time: not done in 1 s", False)


def test_whatever_ends_it_the_rows_that_were_printed_are_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(bench: Bench) -> list[Row]:
        raise KeyboardInterrupt

    tasks = [
        Task(part="p", name="first", run=lambda bench: [row("p", "first", 1.0)]),
        Task(part="p", name="second", run=killed),
    ]
    path = tmp_path / "gpu.json"
    for begun, names in ((tasks[1:], []), (tasks, ["first"])):
        monkeypatch.setattr(gpu, "tasks", lambda begun=begun: begun)
        assert gpu.main(["--device", "cpu", "--tiny", "--out", str(path)]) == 130
        document = json.loads(path.read_text())
        assert ([row["name"] for row in document["rows"]], document["ended"]) == (names, False)
    printed = capsys.readouterr().out
    assert "first" in printed and printed.count(f"stopped; the rows above are in {path}") == 2
    assert [file.name for file in tmp_path.iterdir()] == ["gpu.json"]


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
    line = gpu.line(row("gpt", language.gain(gemm), 1.2, ratios=[1.1, 1.3], published_gains=language.PUBLISHED[gemm]))
    assert "1.100 to 1.300, published: 1.10 (Llama3-8B, 8 H100" in line


def test_a_number_format_that_the_device_lacks_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "capability_of", lambda device: (8, 0))
    on_a100 = dataclasses.replace(TINY, device=torch.device("cuda"))
    tasks = [task for task in (*language.tasks(), *language.compiled()) if "fp8" in task.name]
    rows = [row for task in tasks for row in task.run(on_a100)]
    assert len(rows) == 2 * len(language.GEMMS)
    assert all("needs compute capability 8.9" in row.left_out and not gpu.is_broken(row) for row in rows)


def test_simplenets_operations_are_those_of_its_products() -> None:
    settings = arguments.parse(["amp=o2", "batch=2048"], "simplenet", "torch").settings
    assert simplenet_flops(settings) == 26 * 2 * 2048 * 8192**2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu"], "needs --tiny"),
        (["--device", "cpu", "--tiny", "--save"], "are not kept"),
        (["--device", "cpu", "--tiny", "--only", "resnet"], "the parts are ceiling, check, training"),
    ],
)
def test_wrong_words_get_an_answer(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
