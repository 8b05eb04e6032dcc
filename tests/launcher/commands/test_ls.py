import csv
import io
import json
import os
import re
import subprocess
import sys
import time

import pytest

from launcher.commands import ls
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import processes, selection, store

from ..compare import folders as comparisons
from ..run_folders import (
    NAME,
    STEPPING,
    SWEEP,
    begin,
    command,
    finished,
    make,
    metrics,
    result,
    running,
    submit,
    sweep,
    until,
)

HEAVY = {
    *("hydra", "omegaconf", "antlr4", "yaml", "rich", "submitit", "torch", "numpy"),
    *("dataclasses", "subprocess", "asyncio", "logging"),
}


@pytest.fixture
def shown(capsys):
    def show(*arguments):
        assert ls.main(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    return show


def test_without_any_run_it_says_so(root, shown, monkeypatch):
    assert shown() == [f"no runs in {root}"]
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "nowhere"))
    assert shown() == ["no runs yet"]


def test_a_run_is_a_line_with_what_it_was_asked_and_what_it_gained(root, shown):
    store.write_json(finished(root) / "result.json", result())
    header, line = shown()
    assert header.split() == ["RUN", "STATE", "TIME", "STEP", "ACCURACY", "SAMPLES/S", "PROOF", "REQUEST"]
    assert line.split() == [NAME, "done", "1m05s", "-", "0.9722", "3410", "proved", "mnist-o2", "amp=o2", "batch=128"]


def test_a_running_run_shows_its_last_step_and_how_long_ago_that_was(root, shown):
    folder = running(root, "exec sleep 300")
    stepped = time.time() - 100
    metrics(folder, [{"step": 77, "time": stepped}])
    header, line = shown()
    assert line.split()[1:4:2] == ["running", "77"]
    at = header.index("LAST STEP")
    assert re.fullmatch(r"\d+m\d\ds ago", line[at : at + len("LAST STEP")].strip())
    assert re.search(r"progress .* last step \d+m\d\ds ago", "\n".join(shown(folder.name)))
    assert json.loads("\n".join(shown("--json")))[0]["metrics"]["step_time"] == stepped


def test_a_step_of_an_earlier_attempt_has_no_age(root, shown):
    folder = running(root, "exec sleep 300")
    metrics(folder, [{"step": 80, "time": 1.0}, {"event": "start", "attempt": 2, "resumed_from": 80, "time": 2.0}])
    assert "LAST STEP" not in shown()[0]


@pytest.mark.parametrize(("resumed_from", "step"), [(77, "77"), (None, "-")])
def test_before_its_first_step_an_attempt_shows_the_step_that_it_resumes_from(root, shown, resumed_from, step):
    folder = finished(root, state="failed")
    metrics(folder, [{"step": 80}, {"event": "start", "attempt": 2, "resumed_from": resumed_from}])
    assert shown()[1].split()[3] == step


def test_a_run_that_was_killed_shows_the_step_at_which_it_ended(root, shown):
    folder = finished(root, state="failed")
    metrics(folder, [{"step": 77}])
    assert shown()[1].split()[3] == "77"
    assert "progress   ended at step 77" in shown(folder.name)
    assert json.loads("\n".join(shown("--json")))[0]["metrics"]["step"] == 77


def test_the_newest_twenty_and_all_unfinished_ones_are_listed(root, shown):
    for day in range(1, 29):
        finished(root, f"202602{day:02}-000000-calm-lake")
    elsewhere = processes.Identity("n7", "another", 1, 1)
    submit(make(root, "20260101-000000-old-one"), elsewhere)
    lines = shown()
    assert [line.split()[0][6:8] for line in lines[1:21]] == [f"{day:02}" for day in range(28, 8, -1)]
    assert lines[21].split()[:2] == ["20260101-000000-old-one", "unreachable"]
    assert lines[22:] == ["20 done, 1 unreachable"]
    assert len(shown("--all")) == 1 + 29 + 1


def test_a_flood_of_unfinished_runs_is_cut_and_counted(root, shown):
    for index in range(100):
        submit(make(root, f"{SWEEP}-{index:03}"), processes.Identity("n7", "another", 1, 1))
    lines = shown()
    assert len(lines) == 1 + ls.MOST + 2
    assert lines[-2] == "and 40 more that have not ended (`ls --all` lists everything)"
    assert len(json.loads("".join(shown("--json")))) == 100


def test_looking_at_a_finished_run_takes_its_marker_away(root, shown):
    finished(root)
    store.mark_unfinished(root, NAME)
    shown()
    assert selection.unfinished([str(root)]) == []


def test_a_sweep_shows_its_cells(root, shown):
    runs = sweep(root, 4)
    finished(root)
    measured = [{"loss": 0.5}, {"loss": 0.1, "accuracy": 0.9}, {"loss": None}, None]
    for index, (run, values) in enumerate(zip(runs, measured, strict=True)):
        plan = {"swept": [["lr", f"1e-{index}"]], "gpus": 2, "nodes": 2}
        store.write_json(run / "plan.json", plan)
        if values is not None:
            held_out = values if "accuracy" in values else {}
            own = {"loss": {"first": 1.0, "last": values["loss"]}, "eval": held_out, "logged": {"f1": 0.25 * index}}
            store.write_json(run / "result.json", result(**own))
    header, *rows, total = shown("calm")
    assert header.split() == [*"RUN LR STATE TIME STEP LOSS ACCURACY EVAL.LOSS F1 SAMPLES/S PEAK MEMORY PROOF".split()]
    assert [line.split()[:2] for line in rows] == [[f"00{index}", f"1e-{index}"] for index in range(4)]
    assert rows[1].split()[2:] == ["done", "1m05s", "-", "0.1", "0.9", "0.1", "0.25", "3410", "512", "MiB", "proved"]
    assert total == f"sweep {SWEEP}: 4 runs, 4 done, 4m20s in total, 0.2889 GPU hours"
    for name in ("TIME", "STEP", "LOSS", "ACCURACY", "SAMPLES/S", "PEAK MEMORY"):
        end = header.index(name) + len(name)
        assert rows[1][end - 1] != " " == rows[1][end], f"{name} is aligned to the right"
    for words, order in (
        ("--sort loss", "1023"),
        ("--sort f1", "2103"),
        ("--sort accuracy", "1023"),
        ("--best 1", "1"),
    ):
        assert [line[2] for line in shown("calm", *words.split())[1 : 1 + len(order)]] == list(order), words
    table = list(csv.DictReader(io.StringIO("\n".join(shown("calm", "--csv")))))
    assert [row["lr"] for row in table] == ["1e-0", "1e-1", "1e-2", "1e-3"]
    assert (table[1]["f1"], table[1]["seconds"], table[3]["loss"]) == ("0.25", "65.0", "")
    assert (table[1]["rate"], table[1]["unit"], table[1]["proof"]) == ("3410.5", "samples/s", "proved")
    for words, problem in (
        (
            ("calm", "--sort", "bleu"),
            "no run of this sweep has measured it; they have loss, accuracy, eval.loss, f1, rate",
        ),
        (("--best", "2"), "--best is for a sweep: ls SWEEP --best"),
        ((NAME, "--csv"), f"--csv is for a sweep, and {NAME} is a run"),
    ):
        with pytest.raises(UsageError, match=problem):
            ls.main(list(words))


def test_a_sweep_that_has_not_ended_shows_its_losses_so_far(root, shown):
    for index in range(2):
        folder = make(root, f"{SWEEP}-00{index}")
        submit(folder, processes.Identity("n7", "another", 1, 1))
        metrics(folder, [{"step": 7, "loss": 0.25, "time": 1.0}] * index)
    header, *rows = shown("calm")[:3]
    assert header.split() == ["RUN", "STATE", "TIME", "STEP", "LOSS", "SAMPLES/S", "PROOF"]
    assert [line.split()[1:5] for line in rows] == [["unreachable", "-", "-", "-"], ["unreachable", "-", "7", "0.25"]]


def test_one_run_shows_everything_about_it(root, shown):
    folder = finished(root)
    store.write_json(folder / "result.json", result())
    text = "\n".join(shown("brave"))
    for words in (
        "done after 1m05s",
        "mnist-o2 amp=o2 batch=128",
        "amp=o2 dtype=auto batch=128",
        "amp=o2 dtype=bfloat16 batch=128",
        "proved: 97% of the work in bfloat16",
        "3410 samples/s",
        "0.9722",
        f"where        {processes.host()}\n",
        "attempts     1\n",
        "2026-01-02T03:04:05Z, ended 2026-01-02T03:05:10Z",
        str(folder),
    ):
        assert words in text


def test_a_comparison_shows_its_arms_with_the_rates_of_their_rounds_once_it_has_ended(root, shown):
    folder = finished(root)
    comparisons.plan_of(folder, ("o0", comparisons.NOISE), ("o2", comparisons.TWICE))
    comparisons.change(folder, 1, throughput={"unit": "steps/s", "mean": 7.0})

    def arms():
        return [" ".join(line.split()[1:]) for line in shown(NAME) if line.startswith("arm")]

    assert arms() == ["amp=o0 done, 3410 samples/s", "amp=o2 done, 7 steps/s"]
    compared = {"arms": [{"arm": "00", "samples_per_second": 1000.0}, {"arm": "01", "steps_per_second": 20.0}]}
    store.write_json(folder / "result.json", result(comparison=compared))
    assert arms() == ["amp=o0 done, 1000 samples/s", "amp=o2 done, 20 steps/s"]


def test_a_failed_run_shows_why_and_the_end_of_its_log(root, shown):
    folder = finished(root, state="failed", reason="the trainer ended with exit code 1", attempt=2)
    store.write_json(folder / "attempts/1/ended.json", {"state": "interrupted", "reason": "its node failed"})
    (folder / "attempts/2").mkdir()
    (folder / "attempts/2/stderr.log").write_text(
        "".join(f"line {number}\n" for number in range(20)) + "ValueError: x\n"
    )
    lines = shown(NAME)
    assert "failed after 1m05s (attempt 2): the trainer ended with exit code 1" in lines[1]
    assert [line.split(None, 2)[1:] for line in lines if line.startswith("attempt ")] == [
        ["1", "interrupted: its node failed"]
    ]
    assert lines[-1] == "  ValueError: x" and lines[-10] == "  line 11"
    assert lines[-11] == f"the end of {folder}/attempts/2/stderr.log:"


def test_a_running_run_shows_how_far_it_is(root, shown):
    folder = begin(root, STEPPING)
    until(lambda: (folder / "metrics.jsonl").exists() and b'"step": 3' in (folder / "metrics.jsonl").read_bytes())
    (line,) = (line for line in shown(NAME) if line.startswith("progress"))
    assert "/500" in line and "2560 samples/s" in line


def test_programs_get_json(root, shown):
    folder = finished(root, state="failed", reason="out of memory")
    store.write_json(folder / "result.json", result(updates={"attempted": 72, "applied": 70}))
    ((row),) = json.loads("".join(shown("--json")))
    facts = {
        "id": NAME,
        "name": "mnist-o2",
        "words": ["amp=o2", "batch=128"],
        "folder": str(folder),
        "state": "failed",
        "reason": "out of memory",
    }
    assert facts.items() <= row.items()
    assert row["metrics"] == {
        "step": 72,
        "step_time": None,
        "loss": 0.0831,
        "accuracy": 0.9722,
        "logged": {},
        "throughput": 3410.5,
        "throughput_unit": "samples/s",
        "peak_memory_bytes": 512 * 2**20,
        "proof": "proved",
        "proved": True,
    }
    one = json.loads("".join(shown(NAME, "--json")))
    assert one["result"]["observed"]["verdict"] == "proved"
    assert one["attempts"] == [1] and one["plan"]["name"] == "mnist-o2"
    (folder / "result.json").unlink()
    ((row),) = json.loads("".join(shown("--json")))
    assert row["metrics"].pop("logged") == {} and set(row["metrics"].values()) == {None}


@pytest.mark.parametrize("width", [90, 70])
def test_a_narrow_listing_keeps_state_time_step_and_accuracy(root, width):
    folder = finished(root, f"{SWEEP}-000")
    store.write_json(folder / "result.json", result(updates={"attempted": 72, "applied": 70}))
    lines = ls.listing(backends.states_of([store.Run(str(root), folder.name)]), 0, [str(root)], width)
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:5] == ["RUN", "STATE", "TIME", "STEP", "ACCURACY"]
    assert lines[1].split()[1:5] == ["done", "1m05s", "72", "0.9722"]


def test_half_written_and_damaged_files_are_no_trouble(root, shown):
    for number, name in enumerate(("status.json", "submission.json", "plan.json", "result.json", "metrics.jsonl")):
        folder = finished(root, f"20260102-03040{number}-brave-otter")
        (folder / name).write_bytes(b'{"state": ')
        store.mark_unfinished(root, folder.name)
        shown(folder.name)
        shown(folder.name, "--json")
    make(root, "20260102-030409-brave-otter")
    lines = shown()
    assert [line.split()[1] for line in lines[1:]] == ["lost", "done", "done", "done", "done", "lost"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["brave-oter"], f"did you mean {NAME}"),
        (["--al"], "did you mean --all"),
        (["root=x"], "no run has a key root"),
        (["run_root=/nowhere"], "run_root=/nowhere is no folder"),
        ([NAME, NAME], "one run or sweep at a time, not 2"),
    ],
)
def test_a_mistake_gets_one_clear_error(root, arguments, message):
    finished(root)
    with pytest.raises(UsageError, match=message):
        ls.main(arguments)


def test_a_run_root_that_was_never_submitted_to_can_be_named(tmp_path, root, shown):
    finished(tmp_path / "other")
    assert shown()[0].startswith("no runs")
    assert shown(f"run_root={tmp_path}/other")[1].startswith(NAME)


@pytest.mark.parametrize("arguments", [[], ["ls"], ["ls", "--help"], ["ls", NAME], ["--help"]])
def test_listing_imports_nothing_heavy(root, arguments):
    store.write_json(finished(root) / "result.json", result())
    text = f"""
import sys
from launcher.__main__ import main
try:
    main({arguments})
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0
    assert not HEAVY & {name.split(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("runs_there", [1, 300])
def test_a_reader_that_has_gone_is_no_error(root, runs_there):
    for index in range(runs_there):
        finished(root, f"{SWEEP}-{index:03}")
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command("ls", "--all"), stdout=writer, stderr=subprocess.PIPE, env=environment, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_runs_are_listed_those_without_a_last_status_too(root, tmp_path, shown):
    model = finished(root)
    running = tmp_path / "running.json"
    store.write_json(running, {**store.read_or_empty(model / "status.json"), "state": "running"})
    for number in range(209):
        folder = root / f"20260110-{number:06}-brave-otter"
        folder.mkdir()
        lost = number % 21 == 0
        for name in ("submission.json", "plan.json", "status.json"):
            os.link(running if lost and name == "status.json" else model / name, folder / name)
        if lost:
            (root / ".unfinished" / folder.name).touch()
    listed = shown("--all")
    assert len(listed) == 210 + 2 and listed[-1] == "200 done, 10 lost"


def test_a_run_that_hangs_names_its_ranks_the_one_that_differs_first(root, shown):
    folder = finished(root, state="failed")
    waits = "at train.py:9, in all_reduce of c10d.py"
    for rank, where in enumerate((waits, "at train.py:5\x1b[31m", waits)):
        record = {"rank": rank, "node": f"n{rank}", "seconds": 300, "where": where}
        store.write_json(folder / f"attempts/1/hang-rank{rank}.json", record)
    alone, others = (line.split(None, 2)[2] for line in shown(NAME) if line.startswith("no step"))
    assert alone.startswith("rank 1 on n1: at train.py:5") and "\x1b" not in alone
    assert others == f"ranks 0 on n0, 2 on n2: {waits}"
