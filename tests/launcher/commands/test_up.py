"""`up`, what reaches what it started, and `down`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.probe.slurm_commands import call
from launcher.runs import terminals
from tests.launcher.run_folders import until
from tests.launcher.slurm.bench import job_of


@pytest.fixture
def up(tmp_path, monkeypatch, capsys):
    """Starts one with the words, gives its run id, and ends it after the test."""
    monkeypatch.chdir(tmp_path)
    root = f"run_root={tmp_path}/runs"
    made: list[str] = []

    def start(*words):
        assert main(["up", "gpus=0", root, *words]) == 0
        made.append(capsys.readouterr().out.strip())
        return made[-1]

    yield start
    for run in made:
        main(["cancel", "--now", run, root])


def shell(tmp_path, run, *command, text=""):
    argv = [sys.executable, "-m", "launcher", "shell", run, f"run_root={tmp_path}/runs", "--", *command]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, cwd=tmp_path)


def listed(tmp_path, capsys, run):
    main(["ls", run, "--json", f"run_root={tmp_path}/runs"])
    return json.loads(capsys.readouterr().out)


def walk(tmp_path, capsys, run):
    """A command in it, then its end."""
    done = shell(tmp_path, run, "sh", "-c", 'cat; echo " $LAUNCHER_SPEC"; exit 7', text="sent")
    assert (done.returncode, done.stdout) == (7, f"sent {tmp_path}/runs/{run}/plan.json\n"), done.stderr
    assert main(["down", run, f"run_root={tmp_path}/runs"]) == 0
    assert "done after" in (out := capsys.readouterr().out) and "ended by down" in out
    after = listed(tmp_path, capsys, run)
    assert (after["state"], after["exit_code"]) == ("done", 0)


def test_here_it_runs_commands_until_down_ends_it(up, tmp_path, capsys):
    run = up()
    assert main(["down", f"run_root={tmp_path}/runs"]) == 2
    assert f"down needs the name of a RUN; up: {run}" in capsys.readouterr().err
    plan = json.loads((tmp_path / "runs" / run / "plan.json").read_text())
    assert plan["cluster"]["time"] == "8:00:00"
    walk(tmp_path, capsys, run)
    assert "has ended; `up` starts another" in shell(tmp_path, run, "true").stderr


def test_a_listing_has_its_cost_and_whether_a_terminal_is_open(up, tmp_path, capsys):
    run = up()
    root = f"run_root={tmp_path}/runs"
    assert main(["ls", root]) == 0
    assert re.search(r" is up, idle for (\d+m)?\d+s: ", capsys.readouterr().out)
    argv = [sys.executable, "-m", "launcher", "shell", run, root, "--", "sh", "-c", "echo in; read -r line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as opened:
        assert opened.stdout.readline() == "in\n"
        assert terminals.idle(f"{tmp_path}/runs/{run}", 0.0) == 0
        main(["ls", root])
        assert "is up, a terminal is open: " in capsys.readouterr().out
        opened.communicate("go\n")
    assert terminals.idle(f"{tmp_path}/runs/{run}", 0.0) >= 1


def test_its_time_limit_ends_it_as_done(up, tmp_path, capsys):
    run = up("cluster.time=1", "cluster.stop_before=59")
    until(lambda: listed(tmp_path, capsys, run)["finished"])
    after = listed(tmp_path, capsys, run)
    assert (after["state"], after["reason"]) == ("done", "ended by its time limit")


def test_what_ends_before_it_is_up_was_not_up(tmp_path, capsys):
    setup = "cluster.setup=['sleep 1; false']"
    assert main(["up", "device=cpu", f"run_root={tmp_path}/runs", setup]) == 1
    assert "up; a terminal in it" not in (said := capsys.readouterr().err) and "failed" in said


def test_what_installed_files_a_container_has_are_there_for_the_next_command(bed, up, tmp_path, capsys):
    run = up("container=docker", f"image={bed.images['python'].docker}", "container.limits=null")
    assert shell(tmp_path, run, "sh", "-c", "echo kept >/tmp/made").returncode == 0
    assert shell(tmp_path, run, "cat", "/tmp/made").stdout == "kept\n"
    walk(tmp_path, capsys, run)


def test_a_container_that_cannot_start_is_not_up(bed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["container=docker", f"image={bed.images['python'].docker}", "container.limits={nofile: 999999999999}"]
    assert main(["up", "gpus=0", f"run_root={tmp_path}/runs", *words]) == 1
    assert "docker could not start the container" in capsys.readouterr().err


def test_under_slurm_a_command_runs_in_the_allocation(bed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_root = f"run_root={bed.shared}/{tmp_path.name}"
    assert main(["up", "cluster=slurm", "gpus=1", "cluster.time=5", run_root]) == 0
    run = capsys.readouterr().out.strip()
    argv = [sys.executable, "-m", "launcher", "shell", run, run_root, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr
    assert main(["down", run, run_root]) == 0
    assert "ended by down" in capsys.readouterr().out
    assert main(["rm", "--now", run, run_root]) == 0


def test_an_allocation_that_is_preempted_has_ended_and_is_not_up_again(bed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_root = f"run_root={bed.shared}/{tmp_path.name}"
    place = ("cluster.partition=scavenge", "cluster.mem=35G", "cluster.nodelist=n2", "cluster.time=10")
    assert main(["up", "cluster=slurm", "gpus=0", *place, run_root]) == 0
    run = capsys.readouterr().out.strip()
    wants = ["--parsable", "--partition=priority", "--mem=35G", "--nodelist=n2", "--output=/dev/null"]
    preemptor = call(["sbatch", *wants, "--wrap=sleep 5"]).stdout.strip()
    folder = Path(f"{run_root.partition('=')[2]}/{run}")
    job = job_of(folder)
    # One that ends within its grace time is not requeued in any case; a busy node takes longer.
    assert " Requeue=0 " in call(["scontrol", "--oneliner", "show", "job", job]).stdout
    try:
        until(lambda: preemptor not in call(["squeue", "--noheader", "--format=%i"]).stdout.split(), 120)
        assert job not in call(["squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i"]).stdout.split()
        main(["ls", run, run_root])
        assert "done after" in (shown := capsys.readouterr().out) and "ended by a preemption" in shown
    finally:
        call(["scancel", "--quiet", preemptor, job])


def test_over_ssh_a_command_runs_where_the_run_is(bed, over_ssh, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["up", "gpus=0", *over_ssh]) == 0
    run = capsys.readouterr().out.strip()
    argv = [sys.executable, "-m", "launcher", "shell", run, "--", "sh", "-c", 'pwd; echo "$LAUNCHER_SPEC"; exit 4']
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    folder = f"{over_ssh[-1].partition('=')[2]}/{run}"
    assert (done.returncode, done.stdout) == (4, f"{folder}/work\n{folder}/plan.json\n"), done.stderr
    assert main(["ls"]) == 0
    assert re.search(r"is up, idle for \d+s: .* without a GPU so far", capsys.readouterr().out)
    argv[-3:] = ["sh", "-c", "echo in; read -r line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as opened:
        assert opened.stdout.readline() == "in\n"
        assert main(["ls"]) == 0
        assert "is up, a terminal is open: " in capsys.readouterr().out
        opened.communicate("go\n")
    assert main(["down", run]) == 0
    assert "ended by down" in capsys.readouterr().out


def test_in_apptainer_it_runs_commands_until_down_ends_it(bed, up, tmp_path, capsys):
    walk(tmp_path, capsys, up("container=apptainer", f"image={bed.images['python'].sandbox}"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "train.py"], "up starts no script and no command, and was given train.py"),
        (["up", "--", "ls"], "was given a command"),
        (["up", "gpus=0,1"], "up starts one container or allocation"),
    ],
)
def test_refusals_leave_nothing(tmp_path, capsys, words, says):
    assert main([words[0], f"run_root={tmp_path}/runs", *words[1:]]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_another_run_is_not_ended_by_down(tmp_path, capsys):
    run = tmp_path / "20260101-000000-calm-otter"
    run.mkdir()
    (run / "plan.json").write_text('{"schema": 1}')
    assert main(["down", run.name, f"run_root={tmp_path}"]) == 2
    assert f"{run.name} was not started by up; `cancel {run.name}` ends it" in capsys.readouterr().err
