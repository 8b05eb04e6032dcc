import pytest

from amp_launcher import run_folder
from launcher.compare.last_words import last_words
from launcher.runs import log_tail, store
from launcher.ui import ended_runs
from tests.launcher.run_folders import SWEEP, finished, result, state, sweep


def lines_of(folder):
    return ended_runs.of_run(folder, state(folder), 0)


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
    lines = last_words({folder: state(folder) for folder in runs})
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
    lines = last_words({folder: state(folder) for folder in (good, bad)})
    assert [line.split() for line in lines[:3]] == [
        "RUN AMP STATE TIME STEP LOSS ACCURACY EVAL.LOSS SAMPLES/S PEAK MEMORY PROOF".split(),
        "000 o1 done 1m05s - 0.0831 0.9722 0.1 3410 512 MiB proved".split(),
        "001 o2 failed 1m05s - - - - - - -".split(),
    ]
    assert lines[3:] == [
        "001: failed after 1m05s: out of memory",
        f"sweep {SWEEP}: 2 runs, 1 done, 1 failed, 2m10s in total",
        f"folders in {tmp_path}",
    ]


def test_the_table_of_a_sweep_of_scripts_has_the_last_words_of_those_that_failed_and_no_empty_accuracy(tmp_path):
    runs = sweep(tmp_path, 2, finished, state="failed", reason="the script ended with exit code 1")
    (runs[0] / "attempts/1/stderr.log").write_text("a warning\ndiverged at step 5: loss inf\n")
    (runs[1] / "attempts/1/stderr.log").write_text("the script ended with exit code 1\n")
    header, *lines = last_words({folder: state(folder) for folder in runs})
    assert header.split() == ["RUN", "STATE", "TIME", "STEP", "SAMPLES/S", "PROOF"]
    why = "failed after 1m05s: the script ended with exit code 1"
    assert lines[2:-2] == [f"000: {why}", "  diverged at step 5: loss inf", f"001: {why}"]


def test_a_sweep_that_was_stopped_has_the_command_to_go_on_with_it_once(tmp_path):
    runs = sweep(tmp_path, 3, finished, state="stopped")
    lines = last_words({folder: state(folder) for folder in runs})
    assert lines[-1] == f"continue with: python -m launcher resume {runs[0].name.rpartition('-')[0]}"
    assert sum("launcher resume" in line for line in lines) == 1


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
