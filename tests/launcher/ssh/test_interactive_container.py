"""An interactive container, end to end: logged in to at host:port, its mode checked, trained in, its results fetched.

The walk of https://man.twcc.ai/@twccdocs/howto-ccs-activate-tensorflow-amp-en, in a container of the project's own
recipe on the testbed's base. There is no GPU: its driver's program is a stand-in, and training is on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from typing import NamedTuple

import pytest

from launcher.__main__ import main
from launcher.containers import image_recipes
from launcher.script import telemetry
from launcher.ssh.host import close_all
from tests.launcher import fake_gpus, terminal
from tests.launcher.run_folders import until
from tests.testbed.bed import SYSTEM_PATH


class Interactive(NamedTuple):
    """A running container, and the words that reach it."""

    name: str
    address: str
    words: tuple[str, ...]


@pytest.fixture(scope="module")
def container(testbed, tmp_path_factory):
    """The recipe's image, started by the recipe's own command but for the port: the testbed's engine has no bridge."""
    folder = tmp_path_factory.mktemp("interactive")
    image = _built(testbed, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keys = folder / "authorized_keys"
    shutil.copyfile(f"{testbed.ssh.key}.pub", keys)
    keys.chmod(0o600)
    _, _, serving = image_recipes.text("interactive", "docker").partition("\n\n")[0].partition(" sh -c ")
    (script,) = shlex.split(serving)
    name = f"interactive-{port}"
    driver = fake_gpus.make(folder / "driver", 1)
    driver.use(0, 417)
    variables = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "OMP_NUM_THREADS": "1", "CUDA_HOME": "/usr/local/cuda"}
    variables["PATH"] = f"{driver.folder}:{SYSTEM_PATH}"
    flags = ["--detach", "--rm", "--init", f"--name={name}", "--network=host"]
    flags += [f"--env={variable}={value}" for variable, value in variables.items()]
    flags += [f"--volume={keys}:/root/.ssh/authorized_keys:ro", f"--volume={driver.folder}:{driver.folder}:ro"]
    _docker(testbed, "run", *flags, image, "sh", "-c", f"{script} -p {port} -o ListenAddress=127.0.0.1")
    try:
        key = until(lambda: _docker(testbed, "exec", name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub", check=False))
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {' '.join(key.split()[:2])}\n")
        config = folder / "config"
        lines = (f"IdentityFile {testbed.ssh.key}", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile /dev/null")
        config.write_text("\n".join(("Host 127.0.0.1", "IdentitiesOnly yes", *lines)) + "\n")
        address = f"root@127.0.0.1:{port}"
        until(lambda: _listens(port))
        yield Interactive(name, address, ("cluster=ssh", f"cluster.host={address}", f"cluster.ssh_config={config}"))
    finally:
        _docker(testbed, "rm", "--force", name, check=False)


def _built(testbed, folder):
    """Its name in the engine; made once for a testbed."""
    base = testbed.images["torch"]
    text = re.sub("^FROM .*", f"FROM {base.docker}", image_recipes.text("interactive", "docker"), flags=re.M)
    name = f"testbed-interactive:{hashlib.sha256((text + base.sandbox).encode()).hexdigest()[:8]}"
    if not _docker(testbed, "image", "inspect", name, check=False):
        file = folder / "interactive.Dockerfile"
        file.write_text(text)
        options = ["--network=host", "--quiet"]
        _docker(testbed, "build", *options, f"--tag={name}", f"--file={file}", str(folder))
    return name


def _docker(testbed, *words, check=True):
    environment = {**os.environ, **testbed.environment, "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(["docker", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 or not check, done.stderr[-2000:]
    return done.stdout if done.returncode == 0 else ""


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_login_has_the_containers_own_variables_and_the_mode_can_be_checked(container):
    shell = terminal.launcher("shell", *container.words, "amp=o2", "device=cpu", "run_root=/root/runs")
    assert shell.ask("echo $TF_ENABLE_AUTO_MIXED_PRECISION") == "1"
    assert shell.ask("id -un; test -e /etc/ssh/sshd_config.d/10.conf && echo inside") == "root\ninside"
    shell.type("exit")
    assert shell.wait() == 0


def test_a_run_in_the_container_is_proved_fetched_and_reported(container, tmp_path, capsys):
    small = ("data=synthetic", "batch=64", "steps=6", "run_root=/root/runs", "gpus=1", "device=cpu")
    assert main([*container.words, "amp=o2", *small, "telemetry.every=1", "wait=true"]) == 0
    shown = capsys.readouterr().out
    run = shown.split()[0]
    assert "proved: bfloat16" in shown
    assert main(["ls", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["peak_memory_bytes"] > 100 * 2**20
    assert main(["fetch", run, f"to={tmp_path}/here"]) == 0
    assert len((tmp_path / "here" / run / "metrics.jsonl").read_text().splitlines()) >= 6
    (samples,) = telemetry.read(tmp_path / "here" / run).gpus
    assert set(samples.known("memory")) == {417.0}
    capsys.readouterr()
    assert main(["report", run]) == 0
    table = capsys.readouterr().out
    assert container.address in table or run in table
    assert "proved" in table


def test_doctor_reports_a_login_without_the_images_variables(container, testbed, capsys):
    words = ("doctor", *container.words, "python=/nowhere/python", "run_root=/root/runs")  # looks, and starts nothing
    assert main([*words]) == 3
    assert "advice   login" not in capsys.readouterr().out
    _docker(testbed, "exec", container.name, "sed", "-i", "/CUDA_HOME/d", "/etc/environment")
    close_all()
    assert main([*words]) == 3
    assert "advice   login      this is a container, and its CUDA_HOME" in capsys.readouterr().out


def test_a_gpu_of_the_container_is_locked_by_one_run(container, capsys):
    words = (*container.words, "device=cpu", "gpus=1", "data=synthetic", "batch=64", "run_root=/root/runs")
    assert main([*words, "epochs=10000"]) == 0
    first = capsys.readouterr().out.split()[0]
    assert main([*words, "steps=2"]) == 3
    assert f"free: 0; GPU 0: held by root (run {first}) since" in capsys.readouterr().err
    assert main([*words, "steps=2", "wait_gpus=true"]) == 0
    second = capsys.readouterr().out.split()[0]
    assert main(["ls", second, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["state"] == "queued" and first in listed["reason"]
    assert main(["cancel", "--now", first, second]) == 0
    assert "cancelled" in capsys.readouterr().out
