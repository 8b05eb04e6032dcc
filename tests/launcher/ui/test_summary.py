from pathlib import Path

import pytest

from amp_launcher import run_folder
from launcher.runs import log_tail, store
from launcher.runs.decode import decode
from launcher.runs.schema import ResultRecord
from launcher.runs.states import State
from launcher.script import telemetry
from launcher.ui import summary
from tests.launcher.run_folders import SWEEP, finished, make, result, state, sweep

STARTED = "2026-01-02T03:04:05Z"
DONE = State("done", attempt=1, exit_code=0, started=STARTED, ended="2026-01-02T03:05:10Z")
NOW = 1767323045 + 5
STEPS = {"unit": "steps/s", "mean": 12.5, "median": 12.0, "p10": 11.0, "p90": 14.0, "counted": "SGD, the first of 2"}
RATE = result()["throughput"]


def record(**values):
    return decode(ResultRecord, result(**values))[0]


def lines_of(folder):
    return summary.of_run(folder, state(folder), 0)


ROWS = {
    "accuracy": "0.9722 (held out, loss 0.1)",
    "throughput": "3410 samples/s (p10 3100, p90 3600)",
    "loss": "2.31 at first, 0.0831 at last",
    "loss scale": "65536, 2 steps skipped",
    "peak memory": "512 MiB",
    "proof": "proved: 97% of the work in bfloat16",
}
WHY = "step 1: 86% ran in bfloat16"
CONTRADICTED = {"verdict": "contradicted", "why": WHY}


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({}, {}),
        ({"startup_memory_bytes": 2**29}, {}),
        ({"startup_memory_bytes": 2**30}, {"peak memory": "512 MiB, 1.0 GiB before the first timed step"}),
        ({"observed": CONTRADICTED}, {"proof": f"contradicted: {WHY}"}),
        # The headline has the reason.
        ({"observed": CONTRADICTED, "reason": f"what ran was not amp=o2: {WHY}"}, {"proof": "contradicted"}),
        (
            {"loss": {"first": 2.31, "last": None}, "nonfinite": ["loss.last", "eval.loss"]},
            {"loss": "2.31 at first, not finite at last"},
        ),
        ({"eval": {"accuracy": 0.5, "test_accuracy": 0.25}}, {"accuracy": "0.5000", "test accuracy": "0.2500"}),
        (
            {"throughput": {**RATE, "data_share": 0.125}},
            {"throughput": "3410 samples/s (p10 3100, p90 3600), 12% of the time waiting for data"},
        ),
        ({"throughput": {**RATE, "data_share": 0.01}}, {}),
        (
            {"throughput": {**RATE, "gpu_busy_share": 0.23}},
            {
                "throughput": "3410 samples/s (p10 3100, p90 3600); launch-bound: the GPU was 23% busy, try "
                "compile=true or a larger batch"
            },
        ),
        ({"throughput": {**RATE, "gpu_busy_share": 0.9}}, {}),
        (
            {"throughput": {**RATE, "matrix_share": 0.012}},
            {
                "throughput": "3410 samples/s (p10 3100, p90 3600); float32 would need 1.2% of a step for its matrix "
                "products: a faster format for them gains little"
            },
        ),
        ({"throughput": {**RATE, "matrix_share": 0.05}}, {}),
        ({"throughput": STEPS}, {"throughput": "12.5 steps/s (p10 11, p90 14), steps of SGD, the first of 2"}),
        (
            {"throughput": {"unit": None, "mean": None, "why": "no optimizer step was seen"}},
            {"throughput": "not known: no optimizer step was seen"},
        ),
    ],
)
def test_the_outcome_has_what_was_measured_and_why_the_mode_is_proved(values, rows):
    assert dict(summary.outcome(record(**values))) == {**ROWS, **rows}


@pytest.mark.parametrize("missing", list(result()))
def test_a_result_without_a_part_is_shown_without_it(missing):
    part = result()
    del part[missing]
    rows = summary.outcome(decode(ResultRecord, part)[0])
    assert rows == summary.outcome(record(**{missing: None}))
    assert len(ROWS) - len(rows) <= 1


def test_values_that_were_not_measured_are_left_out():
    assert summary.outcome(ResultRecord()) == []
    empty = record(throughput={"mean": None}, eval={}, loss={"first": None, "last": None}, loss_scale={"final": None})
    assert [name for name, _ in summary.outcome(empty)] == ["peak memory", "proof"]


@pytest.mark.parametrize(
    ("state", "headline", "elapsed"),
    [
        (DONE, "done after 1m05s", 65),
        (DONE._replace(name="failed", reason="oom", attempt=3), "failed after 1m05s (attempt 3): oom", 65),
        (State("queued"), "queued", None),
        (State("lost", "process 7 is gone", 1, None, STARTED), "lost: process 7 is gone", None),
        (State("running", "", 1, None, STARTED), "running", 5),
    ],
)
def test_a_headline_gives_state_time_attempt_and_reason(state, headline, elapsed):
    assert summary.headline(state, NOW) == headline
    assert summary.elapsed(state, NOW) == elapsed


def test_a_run_is_called_by_its_words_and_a_cell_by_where_it_differs(tmp_path):
    assert summary.label(make(tmp_path)) == "brave-otter"
    swept = [["amp", "o1"], ["xla", True], ["clip", None], ["a.b", [1, 2]]]
    assert summary.label(make(tmp_path, f"{SWEEP}-003", plan={"swept": swept})) == (
        "003 amp=o1 xla=true clip=null a.b=[1,2]"
    )


def test_the_last_words_of_a_run_have_the_result_of_its_last_attempt_and_its_folder(tmp_path):
    folder = finished(tmp_path, state="failed", attempt=2)
    store.write_json(folder / "result.json", result(attempts=1))
    assert not any("accuracy" in line for line in lines_of(folder))
    store.write_json(folder / "result.json", result(attempts=2))
    lines = lines_of(folder)
    assert lines[0].split() == ["brave-otter", "failed", "after", "1m05s", "(attempt", "2)"]
    assert any("proved: 97% of the work in bfloat16" in line for line in lines)
    assert lines[-1].endswith(str(folder))


RLIMIT = "docker: error setting rlimit type 8: operation not permitted"
REMEDY = "what helps: this machine may not raise limits: say container.limits=null"


@pytest.mark.parametrize(("printed", "remedies"), [(RLIMIT, [REMEDY]), ("Segmentation fault", [])])
def test_a_failure_of_a_known_kind_has_its_remedy_once(tmp_path, printed, remedies):
    runs = sweep(tmp_path, 2, finished, state="failed", reason="the trainer ended with exit code 125")
    for folder in runs:
        (folder / "attempts/1/stderr.log").write_text(f"{printed}\n")
    lines = lines_of(runs[0])
    assert lines[lines.index(f"  {printed}") + 1 :] == remedies
    lines = summary.of_sweep({folder: state(folder) for folder in runs}, 0)
    assert [line for line in lines if line.startswith("what helps")] == remedies


@pytest.mark.parametrize(
    ("name", "file", "advice"),
    [
        ("stopped", "checkpoints/step-000000012/model.pt", "continue from the last checkpoint"),
        ("cancelled", "arms/01/checkpoints/step-000000012/model.pt", "continue from the last checkpoint"),
        ("stopped", "attempts/1/stdout.log", "start it again"),
        ("done", "attempts/1/stdout.log", None),
    ],
)
def test_a_run_that_can_be_resumed_has_the_command_and_where_that_begins(tmp_path, name, file, advice):
    folder = finished(tmp_path, state=name)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).touch()
    expected = [f"{advice} with: python -m launcher resume {folder.name}"] if advice else []
    assert [line for line in lines_of(folder) if "launcher resume" in line] == expected


def test_a_sweep_ends_in_one_table_with_why_runs_failed(tmp_path):
    good, bad = finished(tmp_path, f"{SWEEP}-000"), finished(tmp_path, f"{SWEEP}-001", "failed", reason="out of memory")
    for folder, level in ((good, "o1"), (bad, "o2")):
        store.write_json(folder / "plan.json", {"swept": [["amp", level]]})
    store.write_json(good / "result.json", result())
    lines = summary.of_sweep({folder: state(folder) for folder in (good, bad)}, 0)
    assert [line.split() for line in lines[:3]] == [
        ["RUN", "STATE", "TIME", "LOSS", "ACCURACY", "SAMPLES/S", "PEAK", "MEMORY", "PROOF"],
        ["000", "amp=o1", "done", "1m05s", "0.0831", "0.9722", "3410", "512", "MiB", "proved"],
        ["001", "amp=o2", "failed", "1m05s", "-", "-", "-", "-", "-"],
    ]
    assert lines[3:] == [f"{SWEEP}-001: failed after 1m05s: out of memory", f"sweep {SWEEP}, folders in {tmp_path}"]


def test_the_table_of_a_sweep_of_scripts_has_the_last_words_of_those_that_failed_and_no_empty_accuracy(tmp_path):
    runs = sweep(tmp_path, 2, finished, state="failed", reason="the script ended with exit code 1")
    (runs[0] / "attempts/1/stderr.log").write_text("a warning\ndiverged at step 5: loss inf\n")
    (runs[1] / "attempts/1/stderr.log").write_text("the script ended with exit code 1\n")
    header, *lines = summary.of_sweep({folder: state(folder) for folder in runs}, 0)
    assert header.split()[:4] == ["RUN", "STATE", "TIME", "SAMPLES/S"]
    why = "failed after 1m05s: the script ended with exit code 1"
    assert lines[2:-1] == [f"{runs[0].name}: {why}", "  diverged at step 5: loss inf", f"{runs[1].name}: {why}"]


def test_a_sweep_that_was_stopped_has_the_command_to_go_on_with_it_once(tmp_path):
    runs = sweep(tmp_path, 3, finished, state="stopped")
    lines = summary.of_sweep({folder: state(folder) for folder in runs}, 0)
    assert lines[-1] == f"continue with: python -m launcher resume {runs[0].name.rpartition('-')[0]}"
    assert sum("launcher resume" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("results", "name", "cells"),
    [
        ([record(throughput=STEPS), ResultRecord()], "STEPS/S", ["12.5", "-"]),
        ([ResultRecord()], "SAMPLES/S", ["-"]),
        ([record(throughput=STEPS), record()], "RATE", ["12.5 steps/s", "3410 samples/s"]),
    ],
)
def test_a_column_of_throughputs_has_units_in_its_cells_where_they_differ(results, name, cells):
    *_, rates, _ = summary.measurements([DONE] * len(results), results, NOW)
    assert (rates.name, rates.cells) == (name, cells)


def test_the_gpus_of_a_run_are_summed_up_as_they_were_sampled(tmp_path):
    assert summary.gpus(tmp_path) == []
    (tmp_path / "telemetry").mkdir()
    (tmp_path / "telemetry/1-0.gpu.csv").write_text(
        "timestamp, index, uuid, memory.used [MiB], memory.total [MiB], utilization.gpu [%], power.draw [W]\n"
        "2026/11/21 00:00:00.000, 0, GPU-a, 1024, 81920, 80, 300.00\n"
        "2026/11/21 00:00:10.000, 0, GPU-a, 73728, 81920, 100, [N/A]\n"
    )
    assert summary.gpus(tmp_path) == [("GPUs", "72.0 of 80.0 GiB at most, 90% busy on average, 300 W on average")]


HEAD = "timestamp, index, uuid, utilization.gpu [%], clocks.current.sm [MHz], memory.total [MiB]\n"


def sampled(
    folder: Path,
    node: int,
    clocks: dict[int, int],
    *,
    samples: int = telemetry.RECENT,
    busy: int = 99,
    memory: int = 81920,
) -> None:
    """Samples of a node's GPUs at these clocks, by index."""
    (folder / "telemetry").mkdir(exist_ok=True)
    lines = [
        f"2026/11/21 00:{at // 6:02}:{at % 6}0.000, {gpu}, GPU-{node}{gpu}, {busy}, {clock}, {memory}\n"
        for at in range(samples)
        for gpu, clock in clocks.items()
    ]
    (folder / f"telemetry/1-{node}.gpu.csv").write_text(HEAD + "".join(lines))


def slow_rows(folder: Path) -> list[str]:
    return [text for name, text in summary.gpus(folder) if name == "slow GPU"]


def test_a_gpu_whose_clock_stays_below_that_of_the_others_is_named_with_its_node(tmp_path):
    sampled(tmp_path, 0, {0: 1800, 1: 1790})
    sampled(tmp_path, 1, {0: 1795, 1: 1200})
    assert slow_rows(tmp_path) == ["gpu 1 on node 1 runs at 1200 MHz, the others at 1795 MHz"]
    (tmp_path / "telemetry/1-1.node").write_text("gpu07\n")
    assert slow_rows(tmp_path) == ["gpu 1 on gpu07 runs at 1200 MHz, the others at 1795 MHz"]
    (tmp_path / "telemetry/1-1.node").write_text("gpu07\x1b[31m\n")
    assert slow_rows(tmp_path) == ["gpu 1 on node 1 runs at 1200 MHz, the others at 1795 MHz"]


def test_a_gpu_is_not_called_slow_for_a_moment_nor_for_its_rest_nor_for_its_kind_nor_for_a_little(tmp_path):
    sampled(tmp_path, 0, {0: 1800, 1: 1510})
    assert slow_rows(tmp_path) == []
    sampled(tmp_path, 0, {0: 1800, 1: 1490})
    assert slow_rows(tmp_path) == ["gpu 1 on node 0 runs at 1490 MHz, the others at 1800 MHz"]
    sampled(tmp_path, 0, {0: 1800, 1: 1200}, samples=telemetry.RECENT - 1)
    assert slow_rows(tmp_path) == []
    sampled(tmp_path, 0, {0: 1800})
    sampled(tmp_path, 1, {0: 210}, busy=0)
    assert slow_rows(tmp_path) == []
    sampled(tmp_path, 1, {0: 1200}, memory=15360)  # of another kind
    assert slow_rows(tmp_path) == []


TORCHRUN = """E1120 22:22:31.911000 9607 torch/distributed/elastic/api.py:1002] failed (exitcode: 1) of python
Traceback (most recent call last):
  File "torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
amp_launcher.recipes.mnist.train_torch FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  host      : n1
============================================================
"""
ALTERNATING = "".join(line + line.replace("n1", "n2") for line in TORCHRUN.splitlines(keepends=True))


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("reports", [TORCHRUN * 2, ALTERNATING], ids=["one after the other", "line by line"])
def test_the_end_of_a_log_is_the_trainers_without_the_reports_of_torchrun(tmp_path, logs, reports):
    printed = "mnist: 2 ranks have met, and 4 were planned\nrank  host\n0     n1\n1     n2\n"
    closing = "W1120 22:22:31.9 9607 torch/distributed/elastic/api.py:9] Sending process 7 closing signal\n"
    end = "srun: error: n1: task 0: Exited with exit code 1\n"
    (logs / "stderr.log").write_text(printed + closing + reports + end)
    assert log_tail.read(tmp_path, 1) == (logs / "stderr.log", (printed + end).splitlines())


def test_a_log_without_words_of_the_trainer_gives_way_to_the_next(tmp_path, logs):
    (tmp_path / "launch.log").write_text("bash: no such file\n")
    assert log_tail.read(tmp_path, 1) == (tmp_path / "launch.log", ["bash: no such file"])
    for empty in ("", TORCHRUN):
        (logs / "stderr.log").write_text(empty)
        (logs / "stdout.log").write_text("it went wrong\n")
        assert log_tail.read(tmp_path, 1) == (logs / "stdout.log", ["it went wrong"])


@pytest.mark.parametrize("processes", [1, 2])
def test_of_several_ranks_the_traceback_of_the_first_that_failed_is_shown(tmp_path, logs, processes):
    store.write_json(tmp_path / "plan.json", {"processes": processes, "nodes": 1})
    (logs / "stderr.log").write_text("Traceback of rank 0\nRuntimeError: connection reset\n")
    environment = {"LAUNCHER_ATTEMPT": "1"}
    run_folder.first_failure(tmp_path, 1, "ValueError: a bad label", environment, "  in loss\nValueError: a bad label")
    run_folder.first_failure(tmp_path, 0, "RuntimeError: connection reset", environment, "RuntimeError: reset")
    path, lines = log_tail.read(tmp_path, 1)
    if processes == 1:
        assert (path, lines[-1]) == (logs / "stderr.log", "RuntimeError: connection reset")
    else:
        assert (path, lines) == ("the traceback of rank 1", ["  in loss", "ValueError: a bad label"])
