import pytest

from launcher.runs import log_tail, store
from launcher.runs.decode import decode
from launcher.runs.schema import ResultRecord
from launcher.runs.states import State
from launcher.ui import summary
from recipes import run_folder
from tests.launcher.run_folders import finished, make, result, state

SWEEP = "20260103-000000-calm-lake"
DONE = State("done", attempt=1, exit_code=0, started="2026-01-02T03:04:05Z", ended="2026-01-02T03:05:10Z")


def outcome(values):
    return summary.outcome(decode(ResultRecord, values)[0])


def test_the_outcome_says_accuracy_speed_memory_and_why_the_mode_is_proved():
    assert dict(outcome(result())) == {
        "accuracy": "0.9722 (held out, loss 0.1)",
        "throughput": "3410 samples/s (p10 3100, p90 3600)",
        "loss": "2.31 at first, 0.0831 at last",
        "loss scale": "65536, 2 steps skipped",
        "peak memory": "512 MiB",
        "proof": "proved: 97% of the work in bfloat16",
    }


def test_why_a_proof_failed_is_left_to_the_headline_which_has_it():
    observed = {"verdict": "contradicted", "why": "step 1: 86% ran in bfloat16"}
    failed = result(observed=observed, reason="what ran was not amp=o2: step 1: 86% ran in bfloat16")
    assert dict(outcome(failed))["proof"] == "contradicted"
    assert dict(outcome(result(observed=observed)))["proof"] == "contradicted: step 1: 86% ran in bfloat16"


def test_a_last_loss_that_was_no_number_is_said():
    found = outcome(result(loss={"first": 2.31, "last": None}, nonfinite=["loss.last", "eval.loss"]))
    assert dict(found)["loss"] == "2.31 at first, not finite at last"


@pytest.mark.parametrize("missing", list(result()))
def test_a_result_without_a_part_is_told_without_it(missing):
    part = result()
    del part[missing]
    told = outcome(part)
    assert told == outcome({**part, missing: None})
    assert len(outcome(result())) - len(told) <= 1


def test_the_outcome_tells_a_test_apart_and_an_input_that_does_not_keep_up():
    throughput = {**result()["throughput"], "data_share": 0.125}
    found = dict(outcome(result(eval={"accuracy": 0.5, "test_accuracy": 0.25}, throughput=throughput)))
    assert (found["accuracy"], found["test accuracy"]) == ("0.5000", "0.2500")
    assert found["throughput"] == "3410 samples/s (p10 3100, p90 3600), 12% of the time waiting for data"
    throughput["data_share"] = 0.01
    assert "waiting" not in dict(outcome(result(throughput=throughput)))["throughput"]


def test_no_result_has_no_outcome():
    assert outcome({}) == []


def test_values_that_were_not_measured_are_left_out():
    empty = result(throughput={"mean": None}, eval={}, loss={"first": None, "last": None}, loss_scale={"final": None})
    assert [name for name, _ in outcome(empty)] == ["peak memory", "proof"]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (DONE, "done after 1m05s"),
        (
            DONE._replace(name="failed", reason="out of memory", attempt=3),
            "failed after 1m05s (attempt 3): out of memory",
        ),
        (State("queued"), "queued"),
        (
            State("lost", "it was running, and process 7 is gone", 1, None, DONE.started),
            "lost: it was running, and process 7 is gone",
        ),
        (State("running", "", 1, None, DONE.started), "running"),
    ],
)
def test_a_headline_gives_state_time_attempt_and_reason(state, text):
    assert summary.headline(state, 1767323045 + 5) == text


def test_a_running_run_has_taken_what_it_took_so_far_and_a_lost_one_nobody_knows_what():
    running = State("running", "", 1, None, DONE.started)
    assert summary.elapsed(running, 1767323045 + 5) == 5
    assert summary.elapsed(running._replace(name="lost"), 1767323045 + 5) is None
    assert summary.elapsed(State("queued"), 0) is None


def test_a_run_is_called_by_its_words_and_a_cell_by_where_it_differs(tmp_path):
    assert summary.label(make(tmp_path)) == "brave-otter"
    cell = make(
        tmp_path, f"{SWEEP}-003", plan={"swept": [["amp", "o1"], ["xla", True], ["clip", None], ["a.b", [1, 2]]]}
    )
    assert summary.label(cell) == "003 amp=o1 xla=true clip=null a.b=[1,2]"


def test_the_last_words_of_a_run_name_its_folder(tmp_path):
    folder = finished(tmp_path)
    store.write_json(folder / "result.json", result())
    lines = summary.of_run(folder, state(folder), 0)
    assert lines[0].split() == ["brave-otter", "done", "after", "1m05s"]
    assert lines[-1].endswith(str(folder))
    assert any("proved: 97% of the work in bfloat16" in line for line in lines)


def test_what_an_earlier_attempt_gained_is_not_shown_as_the_last_ones(tmp_path):
    folder = finished(tmp_path, state="failed", attempt=2)
    store.write_json(folder / "result.json", result(attempts=1))
    assert summary.result_of(folder, state(folder)) == ResultRecord()
    assert not any("accuracy" in line for line in summary.of_run(folder, state(folder), 0))
    store.write_json(folder / "result.json", result(attempts=2))
    assert any("accuracy" in line for line in summary.of_run(folder, state(folder), 0))


def test_a_failure_ends_with_the_last_ten_lines_of_what_it_said(tmp_path):
    folder = finished(tmp_path, state="failed", reason="the trainer ended with exit code 1")
    log = folder / "attempts/1/stderr.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    lines = summary.of_run(folder, state(folder), 0)
    assert lines[0].endswith("failed after 1m05s: the trainer ended with exit code 1")
    assert lines[-11] == f"the end of {log}:"
    assert lines[-10:] == [f"  line {number}" for number in range(20, 30)]


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        (
            "docker: error setting rlimit type 8: operation not permitted",
            ["what helps: this machine may not raise limits: say container.limits=null"],
        ),
        ("Segmentation fault", []),
    ],
)
def test_a_failure_of_a_known_kind_says_what_helps(tmp_path, said, helps):
    folder = finished(tmp_path, state="failed", reason="the trainer ended with exit code 125")
    (folder / "attempts/1/stderr.log").write_text(f"{said}\n")
    lines = summary.of_run(folder, state(folder), 0)
    assert lines[lines.index(f"  {said}") + 1 :] == helps


def test_a_failure_that_said_nothing_on_stderr_shows_its_stdout_and_one_without_both_its_launch(tmp_path):
    folder = finished(tmp_path, state="failed")
    (folder / "launch.log").write_text("bash: no such file\n")
    assert log_tail.read(folder) == (folder / "launch.log", ["bash: no such file"])
    (folder / "attempts/1/stderr.log").touch()
    (folder / "attempts/1/stdout.log").write_text("it went wrong\n")
    assert log_tail.read(folder) == (folder / "attempts/1/stdout.log", ["it went wrong"])


@pytest.mark.parametrize(("name", "advised"), [("stopped", True), ("cancelled", True), ("done", False)])
def test_a_run_that_can_be_gone_on_with_says_how(tmp_path, name, advised):
    folder = finished(tmp_path, state=name)
    assert any(f"resume {folder.name}" in line for line in summary.of_run(folder, state(folder), 0)) == advised


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("checkpoints/step-000000012/model.pt", "continue from the last checkpoint"),
        ("arms/01/checkpoints/step-000000012/model.pt", "continue from the last checkpoint"),
        ("attempts/1/stdout.log", "start it again"),
    ],
)
def test_a_checkpoint_is_mentioned_only_where_there_is_one(tmp_path, file, advice):
    folder = finished(tmp_path, state="stopped")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).touch()
    assert f"{advice} with: python -m launcher resume {folder.name}" in summary.of_run(folder, state(folder), 0)


def test_a_sweep_ends_in_one_table_with_why_runs_failed(tmp_path):
    good = finished(tmp_path, f"{SWEEP}-000")
    store.write_json(good / "plan.json", {"swept": [["amp", "o1"]]})
    store.write_json(good / "result.json", result())
    bad = finished(tmp_path, f"{SWEEP}-001", state="failed", reason="out of memory")
    store.write_json(bad / "plan.json", {"swept": [["amp", "o2"]]})
    lines = summary.of_sweep({folder: state(folder) for folder in (good, bad)}, 0)
    assert [line.split() for line in lines[:3]] == [
        ["RUN", "STATE", "TIME", "ACCURACY", "SAMPLES/S", "PEAK", "MEMORY", "PROOF"],
        ["000", "amp=o1", "done", "1m05s", "0.9722", "3410", "512", "MiB", "proved"],
        ["001", "amp=o2", "failed", "1m05s", "-", "-", "-", "-"],
    ]
    assert lines[3:] == [f"{SWEEP}-001: failed after 1m05s: out of memory", f"folders in {tmp_path}"]


def test_a_sweep_says_once_what_helps_its_failed_runs(tmp_path):
    runs = [finished(tmp_path, f"{SWEEP}-00{number}", state="failed") for number in range(2)]
    for folder in runs:
        (folder / "attempts/1/stderr.log").write_text("docker: error setting rlimit type 8\n")
    lines = summary.of_sweep({folder: state(folder) for folder in runs}, 0)
    helps = "what helps: this machine may not raise limits: say container.limits=null"
    assert lines[-2:] == [helps, f"folders in {tmp_path}"]
    assert lines.count(helps) == 1


def torchruns_report(host: str) -> str:
    return f"""E1120 22:22:31.911000 9607 torch/distributed/elastic/api.py:1002] failed (exitcode: 1) of python
Traceback (most recent call last):
  File "torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
recipes.torch_.mnist FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  host      : {host}
============================================================
"""


def one_after_the_other(*texts: str) -> str:
    return "".join(texts)


def line_by_line(*texts: str) -> str:
    return "".join("".join(lines) for lines in zip(*(text.splitlines(keepends=True) for text in texts), strict=True))


@pytest.mark.parametrize("written", [one_after_the_other, line_by_line])
def test_the_end_of_a_log_is_what_the_trainer_said_and_not_what_torchrun_added(tmp_path, written):
    log = tmp_path / "attempts" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    said = "mnist: 2 ranks have met, and 4 were planned\nrank  host\n0     n1\n1     n2\n"
    closing = "W1120 22:22:31.9 9607 torch/distributed/elastic/api.py:9] Sending process 7 closing signal\n"
    ends = "srun: error: n1: task 0: Exited with exit code 1\n"
    log.write_text(said + closing + written(torchruns_report("n1"), torchruns_report("n2")) + ends)
    path, lines = log_tail.read(tmp_path, 1)
    assert (path, lines) == (log, (said + ends).splitlines())


def test_a_log_that_holds_only_torchruns_words_gives_way_to_the_next(tmp_path):
    logs = tmp_path / "attempts" / "1"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text(torchruns_report("n1"))
    (logs / "stdout.log").write_text("here\n")
    assert log_tail.read(tmp_path, 1) == (logs / "stdout.log", ["here"])


def test_a_runs_gpus_are_summed_up_as_they_were_sampled(tmp_path):
    assert summary.gpus(tmp_path) == []
    (tmp_path / "telemetry").mkdir()
    (tmp_path / "telemetry/1-0.gpu.csv").write_text(
        "timestamp, index, uuid, memory.used [MiB], memory.total [MiB], utilization.gpu [%], power.draw [W]\n"
        "2026/11/21 00:00:00.000, 0, GPU-a, 1024, 81920, 80, 300.00\n"
        "2026/11/21 00:00:10.000, 0, GPU-a, 73728, 81920, 100, [N/A]\n"
    )
    assert summary.gpus(tmp_path) == [("GPUs", "72.0 of 80.0 GiB at most, 90% busy on average, 300 W on average")]


@pytest.mark.parametrize("processes", [1, 2])
def test_of_several_ranks_the_traceback_of_the_first_that_failed_is_shown(tmp_path, processes):
    logs = tmp_path / "attempts/1"
    logs.mkdir(parents=True)
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


STEPS = {"unit": "steps/s", "mean": 12.5, "median": 12.0, "p10": 11.0, "p90": 14.0, "counted": "SGD, the first of 2"}


def test_a_scripts_rate_names_the_optimizer_whose_steps_were_counted_and_its_absence_why():
    shown = dict(summary.outcome(decode(ResultRecord, result(throughput=STEPS))[0]))
    assert shown["throughput"] == "12.5 steps/s (p10 11, p90 14), steps of SGD, the first of 2"
    absent = {"unit": None, "mean": None, "why": "no optimizer step was seen"}
    shown = dict(summary.outcome(decode(ResultRecord, result(throughput=absent))[0]))
    assert shown["throughput"] == "not known: no optimizer step was seen"


def test_a_column_of_throughputs_has_units_in_its_cells_where_they_differ():
    script, recipe = (decode(ResultRecord, values)[0] for values in (result(throughput=STEPS), result()))
    assert summary.throughputs([script, ResultRecord()]) == ("STEPS/S", ["12.5", "-"])
    assert summary.throughputs([ResultRecord()]) == ("SAMPLES/S", ["-"])
    assert summary.throughputs([script, recipe]) == ("RATE", ["12.5 steps/s", "3410 samples/s"])
