from pathlib import Path

import pytest

from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord, ResultRecord
from launcher.runs.states import State
from launcher.script import telemetry
from launcher.ui import summary
from tests.launcher.run_folders import NAME, SWEEP, result

STARTED = "2026-01-02T03:04:05Z"
DONE = State("done", attempt=1, exit_code=0, started=STARTED, ended="2026-01-02T03:05:10Z")
NOW = 1767323045 + 5
STEPS = {"unit": "steps/s", "mean": 12.5, "median": 12.0, "p10": 11.0, "p90": 14.0, "counted": "SGD, the first of 2"}
RATE = result()["throughput"]


def record(**values):
    return decode(ResultRecord, result(**values))[0]


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


def test_a_run_is_called_by_its_words_and_a_cell_by_where_it_differs():
    assert summary.label_of(NAME, PlanRecord()) == "brave-otter"
    swept = [["amp", "o1"], ["xla", True], ["clip", None], ["a.b", [1, 2]], ["script.text", "two words"]]
    assert summary.label_of(f"{SWEEP}-003", decode(PlanRecord, {"swept": swept})[0]) == (
        "003 amp=o1 xla=true clip=null a.b=[1,2] 'script.text=two words'"
    )


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


@pytest.mark.parametrize(
    ("hardware", "device"), [({"gpu": "H100", "cpu": "Xeon"}, "H100"), ({"gpu": None, "cpu": "Xeon"}, "Xeon"), ({}, "")]
)
def test_a_run_was_on_its_gpu_or_else_on_the_processor(hardware, device):
    assert summary.device_of(record(hardware=hardware)) == device
