"""`doctor` against this machine, the testbed's cluster and its sshd: the lines, the job and the exit code."""

from __future__ import annotations

import json

import pytest

from launcher.__main__ import main
from launcher.executors import trash
from launcher.runs import selection
from tests.launcher import warm


def test_a_sound_machine_proves_a_job_that_leaves_nothing(tmp_path, capsys):
    assert main(["doctor", "amp=o2", f"python={warm.python()}", f"run_root={tmp_path}/runs"]) == 0
    shown = capsys.readouterr().out
    assert "ok       job        done in" in shown
    assert "ok       proof      proved: bfloat16 in 100.0%" in shown
    assert shown.endswith("all checks passed\n")
    assert selection.run_names(f"{tmp_path}/runs") == []
    assert not (tmp_path / "runs" / trash.FOLDER).exists()


def test_all_that_is_wrong_is_listed_at_once_with_exit_3_and_nothing_starts(tmp_path, capsys):
    words = ["python=/nowhere/python", "recipe=resnet50", "data=imagenet", "data.dir=/nowhere/data", "gpus=99"]
    assert main(["doctor", "--json", *words, f"run_root={tmp_path}/runs"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert all(set(finding) == {"level", "about", "message", "remedy"} for finding in report["findings"])
    assert report["ok"] is False
    problems = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert {problem["about"] for problem in problems} == {"request"}
    says = ("data.dir=/nowhere/data is not ", "python=/nowhere/python can't be ", "gpus=99: ")
    assert [part in problem["message"] for problem, part in zip(problems, says, strict=True)] == [True] * 3
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["amp=o9"], "amp=o9 is not one of o0, o1, o2, o3, bf16-mixed"),
        (["--cfg", "job"], "--cfg is not a flag here (flags: --config-dir, --multirun, --help, --json)"),
        (["amp=o1,o2"], "doctor runs one job, and these words are a sweep of 2; name one value each"),
        (["recipe=script", "script=x.py"], "recipe=script: doctor runs a small job of a recipe; leave the script out"),
        (["train.py"], "'train.py' is neither a verb nor key=value"),
    ],
)
def test_wrong_words_are_exit_2(words, says, capsys):
    assert main(["doctor", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_partition_that_is_not_there_is_a_problem_with_the_choices(bed, tmp_path, capsys):
    assert main(["doctor", "cluster=slurm", "cluster.partition=nonesuch", f"run_root={tmp_path}/runs"]) == 3
    assert "problem  request    cluster.partition=nonesuch is not one of gpu," in capsys.readouterr().out


def test_limits_that_the_engine_may_not_raise_are_refused_with_the_remedy(bed, tmp_path, capsys):
    words = ("container=docker", f"image={bed.images['torch'].docker}", "container.limits.nproc=99999999")
    assert main(["doctor", *words, f"run_root={tmp_path}/runs"]) == 3
    shown = capsys.readouterr().out
    assert "problem  job        failed" in shown
    assert "-> this machine may not raise limits: say container.limits=null" in shown


def test_a_host_over_ssh_is_checked_to_the_proof_of_a_job_there(over_ssh, capsys):
    assert main(["doctor", *over_ssh, "amp=o1"]) == 0
    shown = capsys.readouterr().out
    assert "ok       reach      testbed by fabric: " in shown
    assert "ok       proof      proved: bfloat16" in shown
    assert selection.run_names(over_ssh[-1].removeprefix("run_root=")) == []


def test_a_host_that_is_not_there_is_one_problem(capsys):
    assert main(["doctor", "cluster=ssh", "cluster.host=nonesuch.invalid"]) == 3
    assert "problem  reach      there is no host nonesuch.invalid" in capsys.readouterr().out
