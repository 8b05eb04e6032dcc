"""The same job means the same in every runtime wherever it is sent: over SSH, and over SSH to Slurm. All real, through
the launcher's own words; `tests/containers` has what they are rendered to."""

from __future__ import annotations

import json

import pytest

from tests.containers.hostile import VALUES
from tests.containers.registry_server import Registry
from tests.launcher.ssh.far import until

PROBE = """#!/usr/bin/python3
import json, os, sys
if sys.argv[1] == "-c":  # the launcher asks which version this is
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
run = sys.argv[-1][len("run="):]
probed = dict(argv=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd(), uid=os.getuid(), gid=os.getgid())
with open(run + "/probe.new", "w") as stream:
    json.dump(probed, stream)
os.rename(run + "/probe.new", run + "/probe.json")
sys.exit(37)
"""
SECRET = "hush $(id) 'x' \"y\" é"


@pytest.fixture
def probe(far):
    """A far user whose jobs are the probe."""
    far.python.write_text(PROBE.format(python=far.testbed.python))
    return far


def where(place: str, far) -> list[str]:
    common = ["telemetry.every=0", f"cluster.ssh_config={far.config}", f"run_root={far.root}", f"python={far.python}"]
    return [*common, *{"ssh": far.words[:2], "slurm": ["cluster=slurm", "cluster.login=box", "gpus=0"]}[place]]


def contained(kind: str, far) -> list[str]:
    if kind == "none":
        return []
    image = far.testbed.images["python"]
    named = {"docker": image.docker, "podman": image.podman, "apptainer": image.sif}[kind]
    mount = f"mounts=['{far.python}:{far.python}:ro']"
    return [f"container={kind}", f"image={named}", "container.limits=null", mount]


# Docker and Apptainer on Slurm are tests/launcher/contained's.
@pytest.mark.parametrize(
    ("place", "kind"),
    [*(("ssh", kind) for kind in ("none", "docker", "podman", "apptainer")), ("slurm", "none"), ("slurm", "podman")],
)
def test_a_job_has_the_same_environment_in_each_runtime(place, kind, probe, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSED_ON", f"{SECRET}\n2")
    monkeypatch.setenv("NOISE", "x")
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    environment = [f"env.{name}={value}" for name, value in VALUES.items()]
    own = [f"secrets.API_KEY={key}", "env.PASSED_ON"]
    done = probe.ok(*where(place, probe), *contained(kind, probe), *environment, *own, "amp=o2")
    (run,) = done.out.split()
    folder = probe.folder(run)
    until(lambda: probe.status(run).get("ended"), seconds=120)
    assert (probe.status(run)["state"], probe.status(run)["exit_code"]) == ("failed", 37)
    probed = json.loads((folder / "probe.json").read_text())
    assert {name: probed["env"].get(name) for name in VALUES} == VALUES
    assert probed["env"]["API_KEY"] == SECRET
    assert probed["env"]["PASSED_ON"] == f"{SECRET}\n2" and "NOISE" not in probed["env"]
    until(lambda: not (folder / ".secrets").exists())
    plan = json.loads((folder / "plan.json").read_text())
    assert probed["argv"][:2] == ["-m", plan["trainer"]]
    assert probed["argv"][2:] == [f"run={folder}"]
    assert (probed["cwd"], probed["env"]["PYTHONPATH"]) == (f"{probe.root}/.code/{plan['code']}",) * 2
    user = probe.testbed.user
    assert (probed["uid"], probed["gid"], (folder / "probe.json").stat().st_uid) == (user.uid, user.gid, user.uid)
    assert probed["env"]["LAUNCHER_RUN_ID"] == run
    if kind != "none":
        assert probed["env"]["HOME"] == f"{probe.root}/.cache/home"


IN_THE_IMAGE = """#!/bin/sh
echo it ran in the image
for word; do :; done
case $word in run=*) echo '{"attempts": 1}' >"${word#run=}/result.json" ;; esac
"""


def test_a_remote_job_pulls_a_missing_image(far):
    far.python.write_text(IN_THE_IMAGE)
    with Registry("pulled over SSH by a job") as registry:
        # The registry's image is empty, so the host's programs are lent to it.
        lent = [f"'/{name}:/{name}:ro'" for name in ("usr", "bin", "lib", "lib64")]
        mounts = f"mounts=[{','.join(lent)},'{far.python}:{far.python}:ro']"
        image = ["container=apptainer", f"image={registry.name}", "container.pull=true", "container.limits=null"]
        done = far.ok(*where("slurm", far), *image, f"container.cache={far.there}/cache", mounts)
        (run,) = done.out.split()
        assert far.until(run, "done", "failed", "cancelled", seconds=180) == "done"
    assert far.type("logs", run).out == "it ran in the image\n"
