"""`shell` at a real pseudo-terminal, in every place that a job can go to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors import stopping
from launcher.probe import gpu_locks
from tests.launcher import fake_gpus, terminal
from tests.launcher.run_folders import until
from tests.launcher.terminal import Terminal

Open = Callable[..., Terminal]


@pytest.fixture
def opened(tmp_path):
    """Opens terminals, and closes what is left of them at the end."""
    (tmp_path / "runs").mkdir()
    made: list[Terminal] = []

    def open_one(*words):
        own_root = any(word.startswith("run_root=") for word in words)
        made.append(terminal.launcher("shell", *words, *([] if own_root else [f"run_root={tmp_path}/runs"])))
        return made[-1]

    yield open_one
    for shell in made:
        shell.close()


def test_the_folder_behind_a_flag_is_no_run(opened, tmp_path):
    (tmp_path / "sites" / "cluster").mkdir(parents=True)
    (tmp_path / "sites" / "cluster" / "desk.yaml").write_text("kind: local\nsetup: [export FROM_SITE=yes]\n")
    shell = opened("--config-dir", str(tmp_path / "sites"), "cluster=desk", "amp=o0")
    shell.expect("the trainer by hand: ")
    assert shell.ask('echo "$FROM_SITE"') == "yes"


def test_here_it_has_the_variables_the_code_and_the_python_of_a_job(opened, tmp_path):
    shell = opened("amp=o2", "env.GREETING=hello, $(id)", "cluster.setup=['export FROM_SETUP=yes']")
    shell.expect("the trainer by hand: python -m amp_launcher.recipes.mnist.train_torch amp=o2 batch=128")
    assert shell.ask('echo "$GREETING $FROM_SETUP"') == "hello, $(id) yes"
    assert shell.ask("python -c 'import amp_launcher as own; print(own.__file__)'").startswith(
        f"{tmp_path}/runs/.code/"
    )
    assert shell.ask("echo ${LAUNCHER_RUN_ID-none}") == "none"
    shell.type("exit 7")
    assert shell.wait() == 7
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".code"]


def test_a_command_runs_without_a_terminal_and_without_a_run(tmp_path):
    words = ["shell", "gpus=0", "env.A=b", f"run_root={tmp_path}", "--", "sh", "-c", 'echo "$A $1"; exit 4', "-", "c d"]
    argv = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "b c d\n"), done.stderr


def test_the_code_of_an_open_terminal_outlives_the_last_run_of_it(opened, tmp_path, capsys):
    shell = opened("amp=o0")
    code = Path(shell.ask('echo "$PYTHONPATH"'))
    root = tmp_path / "runs"

    def delete_one():
        run = root / "20260101-000000-calm-otter"
        run.mkdir()
        (run / "plan.json").write_text(json.dumps({"schema": 1, "code": code.name}))
        (run / "status.json").write_text('{"schema": 1, "state": "done", "attempt": 1}')
        assert main(["rm", "--now", run.name, f"run_root={root}"]) == 0
        return capsys.readouterr().err

    assert "is kept: a `shell` is open in it" in delete_one()
    assert shell.ask("python -c 'import amp_launcher as own; print(own.__file__)'").startswith(str(code))
    background = int(shell.ask("nohup sleep 1000 >/dev/null 2>&1 & echo $!").split()[-1])
    shell.type("exit")
    assert shell.wait() == 0
    assert "is kept: a `shell` is open in it" in delete_one() and code.is_dir()
    os.kill(background, signal.SIGKILL)
    until(lambda: not delete_one() and not list((root / ".code").iterdir()))
    shell = opened("amp=o0")
    shell.expect("the trainer by hand: ")
    shell.close()  # the window is closed: it can't take its mark away
    until(lambda: not delete_one() and not list((root / ".code").iterdir()))


def test_ctrl_c_is_the_shells_own(opened):
    shell = opened("amp=o1")
    shell.expect("launcher #")
    shell.type("echo sleeping; sleep 100")
    shell.expect("\nsleeping\n")
    time.sleep(0.2)
    shell.press(b"\x03")
    shell.expect("launcher #")
    assert shell.ask("echo still here") == "still here"


def test_it_holds_the_gpus_it_has_while_it_is_open(opened, tmp_path, monkeypatch):
    cards = fake_gpus.make(tmp_path / "driver", 2)
    monkeypatch.setenv("PATH", f"{cards.folder}:{os.environ['PATH']}")
    shell = opened("gpus=1", "batch=128", "device=cpu")
    assert shell.ask("echo $CUDA_VISIBLE_DEVICES") == "0"
    assert "(run shell) since" in gpu_locks.states()[0].holder
    second = opened("visible_gpus=[0]")
    second.expect(r"error: GPUs asked for on .*: 1, free: 0; GPU 0: held by \w+ \(run shell\) since")
    assert second.wait() == 3
    shell.hang_up()
    until(lambda: [entry.holder for entry in gpu_locks.states()] == ["", ""])
    cards.close()


@pytest.mark.parametrize("runtime", ["docker", "apptainer"])
def test_in_a_container_it_has_the_image_the_variables_and_the_mounts(bed, opened, tmp_path, runtime):
    image = bed.images["python"]
    name = image.docker if runtime == "docker" else image.sandbox
    data = tmp_path / "some data"
    data.mkdir()
    (data / "word").write_text("mellon")
    limits = ["container.limits=null"] if runtime == "docker" else []
    shell = opened(f"container={runtime}", f"image={name}", f"mounts=['{data}:/data:ro']", "env.A=x, $(id)", *limits)
    assert shell.ask("cat /data/word; echo; echo $A; tty | cut -c1-5") == "mellon\nx, $(id)\n/dev/"
    assert shell.ask("python3 -c 'import amp_launcher as own; print(own.__file__)'").startswith(
        f"{tmp_path}/runs/.code/"
    )
    shell.type("exit")
    assert shell.wait() == 0


def test_closing_the_window_leaves_no_container(bed, opened):
    shell = opened("container=docker", f"image={bed.images['python'].docker}", "container.limits=null")
    shell.ask("echo inside")

    def there():
        listed = ["docker", "ps", "--all", "--quiet", "--filter=name=shell-"]
        return set(subprocess.run(listed, capture_output=True, text=True).stdout.split())

    before = until(there)  # the engine may know a moment later than the shell answers
    shell.hang_up()
    until(lambda: not before & there())


def test_under_slurm_it_is_an_interactive_job_with_the_resources_of_one(bed, opened):
    shell = opened("cluster=slurm", "gpus=2", "batch=128", "name=a-shell", "cluster.time=5")
    name, gpus, job, device = shell.ask(
        "echo $SLURM_JOB_NAME $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID; tty | cut -c1-5"
    ).split()
    assert (name, gpus, device) == ("a-shell", "0,1", "/dev/")
    shell.type("exit")
    assert shell.wait() == 0
    asked = ["squeue", "--noheader", f"--jobs={job}", "--states=running", "--format=%i"]
    until(lambda: not subprocess.run(asked, capture_output=True, text=True).stdout.strip())


def test_of_a_running_job_it_joins_its_allocation(bed, opened, tmp_path):
    words = ("cluster=slurm", "gpus=1", "amp=o1", "batch=64", "epochs=4000", "env.MARK=its-own")
    assert main([*words, "device=cpu", f"run_root={tmp_path}/runs"]) == 0
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if path.name[0] == "2"]
    until(lambda: (folder / "status.json").exists(), 60)
    shell = opened(folder.name)
    assert shell.ask("echo $MARK $LAUNCHER_SPEC").split() == ["its-own", f"{folder}/plan.json"]
    shell.type("exit")
    assert shell.wait() == 0
    assert stopping.kill_all([folder]) == {}


def test_over_ssh_it_is_the_hosts(bed, opened, over_ssh):
    shell = opened(*over_ssh, "env.A=x, $(id)")
    assert shell.ask("id -un; echo $A") == f"{bed.user.name}\nx, $(id)"
    root = over_ssh[-1].partition("=")[2]
    assert shell.ask("python -c 'import amp_launcher as own; print(own.__file__)'").startswith(f"{root}/.code/")
    shell.type("exit")
    assert shell.wait() == 0


def test_over_ssh_in_a_container(bed, opened, over_ssh):
    shell = opened(*over_ssh[:3], over_ssh[-1], "container=apptainer", f"image={bed.images['python'].sandbox}")
    assert shell.ask("id -un; tty | cut -c1-5") == f"{bed.user.name}\n/dev/"
    assert "/.code/" in shell.ask("python3 -c 'import amp_launcher as own; print(own.__file__)'")


def test_behind_a_login_node_it_is_srun_there(bed, opened, over_ssh):
    words = ("cluster=slurm", "cluster.login=testbed", *over_ssh[2:], "gpus=1", "cluster.time=5")
    shell = opened(*words)
    assert shell.ask("id -un; echo $CUDA_VISIBLE_DEVICES; echo ${SLURM_JOB_ID:+a job}").split("\n") == [
        bed.user.name,
        "0",
        "a job",
    ]
    shell.type("exit")
    assert shell.wait() == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nonesuch",), "nonesuch"),
        (("amp=o1,o2",), "these words are a sweep of 2"),
        (("env.NOT_SET_HERE",), "env.NOT_SET_HERE has no value, and NOT_SET_HERE is not set in this shell"),
        (("amp=o9",), "amp=o9 is not one of"),
        (("--frobnicate",), "--frobnicate is not a flag here"),
    ],
)
def test_a_mistake_is_a_line_and_exit_2(opened, words, says):
    shell = opened(*words)
    shell.expect(f"error: .*{says}")
    assert shell.wait() == 2


def test_without_a_terminal_it_says_so(capsys, tmp_path):
    assert main(["shell", f"run_root={tmp_path}/runs"]) == 2
    assert "shell needs a terminal as its standard input" in capsys.readouterr().err
