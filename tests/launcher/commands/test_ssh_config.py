"""`shell RUN --ssh-config`: the system's ssh and scp, into a job's own sshd."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.errors import Unavailable, UsageError
from launcher.runs import run_roots
from launcher.runs.store import Run
from launcher.ssh import job_entry

ASK = 'echo "$(id -un) $LAUNCHER_SPEC $GREETING ${SLURM_JOB_ID:+allocation}"; cat'

SERVE = """
exec python3 -c '
import os, socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
with server.accept()[0] as connection:
    word = connection.makefile().readline().strip()
    connection.sendall((word + " " + os.environ["LAUNCHER_SPEC"].split("/")[-2] + "\\n").encode())
'
"""


@pytest.fixture
def up(tmp_path, monkeypatch, capsys):
    """Starts what stays up with the words, gives its run id, and ends it after the test."""
    monkeypatch.chdir(tmp_path)
    made: list[list[str]] = []

    def start(*words):
        assert main(["up", *words]) == 0
        root = [word for word in words if word.startswith("run_root=") and "cluster=ssh" not in words]
        made.append([capsys.readouterr().out.strip(), *root])
        return made[-1]

    yield start
    for run in made:
        main(["cancel", "--now", *run])


def enter(tmp_path: Path, capsys: pytest.CaptureFixture[str], run: list[str]) -> tuple[list[str], str]:
    """The arguments by which ssh and scp find the job, and its name there."""
    assert main(["shell", *run, "--ssh-config"]) == 0
    entry = capsys.readouterr().out
    (tmp_path / "entry").write_text(entry)
    return ["-F", str(tmp_path / "entry")], entry.split()[1]


def walk(tmp_path: Path, capsys: pytest.CaptureFixture[str], run: list[str], says: str) -> None:
    """A command with its exit code and its input, in a folder with foreign modules, and a file there and back."""
    options, name = enter(tmp_path, capsys, run)
    for module in ("json", "launcher"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('foreign code ran')\n")
    command = ["ssh", *options, name, f"{ASK}; exit 7"]
    done = subprocess.run(command, cwd=tmp_path, input="sent", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{says}\nsent", "")
    content = bytes(range(256)) * 4000
    (tmp_path / "sent").write_bytes(content)
    there = subprocess.run(["ssh", *options, name, "mktemp"], capture_output=True, text=True, timeout=60).stdout.strip()
    for source, target in ((f"{tmp_path}/sent", f"{name}:{there}"), (f"{name}:{there}", f"{tmp_path}/back")):
        copied = subprocess.run(["scp", *options, source, target], capture_output=True, text=True, timeout=60)
        assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "back").read_bytes() == content


def forward_as_vscode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: list[str], options: list[str], *command: str
) -> None:
    """What VS Code's Remote-SSH runs: a script as the shell's input, and a server there reached by SOCKS."""
    entry, name = enter(tmp_path, capsys, run)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["ssh", *options, "-T", "-D", str(port), *entry, name, *command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ssh:
        assert ssh.stdin is not None and ssh.stdout is not None
        ssh.stdin.write(SERVE)
        ssh.stdin.close()
        listening = int(ssh.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as proxy:
            proxy.sendall(b"\5\1\0")
            assert proxy.recv(2, socket.MSG_WAITALL) == b"\5\0"
            proxy.sendall(b"\5\1\0\3\x09localhost" + listening.to_bytes(2, "big"))
            assert proxy.recv(10, socket.MSG_WAITALL)[1] == 0
            proxy.sendall(b"ping\n")
            assert proxy.makefile().readline() == f"ping {run[0]}\n"
        assert (ssh.stdout.read(), ssh.wait()) == ("", 0)


def test_ssh_opens_a_terminal_of_its_own_kind(up, tmp_path, capsys):
    """As root: a user's own sshd needs /dev/pts with gid=5, which the testbed's machine may not have."""
    options, name = enter(tmp_path, capsys, up("gpus=0", f"run_root={tmp_path}/runs"))
    command = ["ssh", "-tt", *options, name, "test -t 0 && echo $TERM"]
    environment = {**os.environ, "TERM": "vt100"}
    done = subprocess.run(command, env=environment, input="", capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "vt100", done.stderr


def test_here_ssh_and_scp_have_the_environment_of_the_job(up, tmp_path, capsys):
    run = up("gpus=0", "env.GREETING=it's, $(id)", f"run_root={tmp_path}/runs")
    walk(tmp_path, capsys, run, f"root {tmp_path}/runs/{run[0]}/plan.json it's, $(id) ")
    assert (tmp_path / "state/launcher/job_key").stat().st_mode & 0o777 == 0o600
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options, name = enter(tmp_path, capsys, run)
        command = ["ssh", *options, "-W", f"localhost:{listening.getsockname()[1]}", name]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as forwarding:
            listening.settimeout(60)
            listening.accept()[0].sendall(b"of a port")
            assert forwarding.stdout is not None and forwarding.stdout.read(9) == b"of a port"
            forwarding.terminate()


def test_it_lets_in_one_key_and_no_other(up, tmp_path, capsys):
    options, name = enter(tmp_path, capsys, up("gpus=0", f"run_root={tmp_path}/runs"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{tmp_path}/other"], check=True)
    text = (tmp_path / "entry").read_text().replace(str(tmp_path / "state/launcher/job_key"), f"{tmp_path}/other")
    (tmp_path / "entry").write_text(text)
    done = subprocess.run(["ssh", *options, name, "id"], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 255 and "Permission denied (publickey)" in done.stderr


def test_over_ssh_they_and_vscode_reach_the_job_there(bed, over_ssh, up, tmp_path, capsys):
    run = up("gpus=0", "env.GREETING=hi", *over_ssh)
    forward_as_vscode(tmp_path, capsys, run, [], "bash")  # as from Windows
    walk(tmp_path, capsys, run, f"{bed.user.name} {over_ssh[-1].partition('=')[2]}/{run[0]}/plan.json hi ")


def test_under_slurm_they_and_vscode_are_in_the_allocation(bed, up, tmp_path, capsys):
    root = f"{bed.shared}/{tmp_path.name}"
    run = up("cluster=slurm", "gpus=0", "cluster.time=5", "env.GREETING=hi", f"run_root={root}")
    forward_as_vscode(tmp_path, capsys, run, ["-v", "-o", "ConnectTimeout=15"])  # as from Linux and macOS
    walk(tmp_path, capsys, run, f"root {root}/{run[0]}/plan.json hi allocation")
    assert main(["down", *run]) == 0
    assert main(["rm", "--now", *run]) == 0


def test_an_image_without_a_server_is_named_with_what_it_lacks(bed, up, tmp_path, capsys):
    image = f"image={bed.images['python'].docker}"
    run = up("gpus=0", "container=docker", image, "container.limits=null", f"run_root={tmp_path}/runs")
    assert main(["shell", *run, "--ssh-config"]) == 3
    assert "there is no sshd where the run is; it needs OpenSSH's server" in capsys.readouterr().err


def test_a_run_that_does_not_run_has_no_entry(tmp_path, capsys):
    run = tmp_path / "20260101-000000-calm-otter"
    run.mkdir()
    assert main(["shell", run.name, "--ssh-config", f"run_root={tmp_path}"]) == 2
    assert main(["shell", "--ssh-config"]) == 2
    assert "leads into a run, so name one" in capsys.readouterr().err


def test_a_key_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    (tmp_path / "bin").mkdir()
    for text, told in (("echo broken >&2", "job_key: broken"), ("echo full", "job_key: full")):
        (tmp_path / "bin/ssh-keygen").write_text(f"#!/bin/sh\n{text}\nexit 1\n")
        (tmp_path / "bin/ssh-keygen").chmod(0o755)
        with pytest.raises(Unavailable, match=rf"^ssh-keygen could not make .*{told}$"):
            job_entry.public_key()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not installed here"):
        job_entry.public_key()


def test_an_entry_names_the_root_of_a_run_that_is_here_and_a_user_that_is_one(tmp_path):
    name = "20260101-000000-calm-otter"
    assert f"shell {name} run_root=/r --sshd" in job_entry.entry(Run("/r", name), "mei")
    assert f"shell {name} --sshd" in job_entry.entry(Run(run_roots.remote(), name), "mei")
    with pytest.raises(UsageError, match="by which no ssh can log in"):
        job_entry.entry(Run("/r", name), "-oProxyCommand=x")
