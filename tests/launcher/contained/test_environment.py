"""One rule for the job's variables here, on Slurm and in containers: a real job says what it finds.

Over SSH, and in podman, `tests/launcher/ssh/test_containers.py` holds it.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.runs import store
from tests.launcher.contained.places import started, until
from tests.testbed.facts import Testbed

PROGRAM = """#!/bin/sh
[ "$1" != -c ] || exec {python} "$@" # the launcher asks which version this is
for word; do :; done
run=${{word#run=}}
cat /proc/self/environ >"$run/found.new"
mv "$run/found.new" "$run/found"
until [ -e "$run/enough" ]; do sleep 0.1; done
"""


@pytest.mark.parametrize("kind", ["none", "docker", "apptainer"])
@pytest.mark.parametrize("where", ["here", "slurm"])
def test_the_same_variables_go_along_everywhere_and_their_values_are_in_one_file(
    where: str, kind: str, bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, token = f"{uuid.uuid4().hex} 'x' $(id) \"y\"\n`z` é,a=b", uuid.uuid4().hex
    shell = {"MY_FLAG": flag, "MY_TOKEN": token, "NOISE": "x", "LD_LIBRARY_PATH": "/opt/of-this-shell"}
    standard = {"TZ": "Asia/Taipei", "no_proxy": "a,b", "HF_HOME": "/scratch/hf"}
    for name, value in {**shell, **standard}.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=bed.python))
    program.chmod(0o755)
    words = [f"python={program}", f"run_root={tmp_path}/runs", "env.MY_FLAG", "secrets.MY_TOKEN", "env.TYPED=1"]
    words += ["cluster=slurm", "gpus=0"] if where == "slurm" else []
    if kind != "none":
        image = bed.images["python"]
        named = image.docker if kind == "docker" else image.sif
        words += [f"container={kind}", f"image={named}", "container.limits=null", f"mounts=['{program}:{program}:ro']"]
    assert main([*words, "telemetry.every=0", "detach=true"]) == 0
    folder = started(tmp_path / "runs")
    until(lambda: (folder / "found").exists() or store.read_if_whole(folder / "status.json").get("state") == "failed")
    job = dict(pair.split("=", 1) for pair in (folder / "found").read_text().split("\0") if "=" in pair)
    holding = [each for each in folder.rglob("*") if each.is_file() and flag[:32].encode() in each.read_bytes()]
    assert sorted(each.name for each in holding) == [".environment", "found"]
    assert (folder / ".environment").stat().st_mode & 0o777 == 0o600
    (folder / "enough").touch()
    until(lambda: store.read_if_whole(folder / "status.json").get("ended"))  # failed, since it leaves no result
    expected = {"MY_FLAG": flag, "MY_TOKEN": token, "TYPED": "1", "TZ": "Asia/Taipei", "no_proxy": "a,b"}
    assert {name: job.get(name) for name in expected} == expected
    assert "NOISE" not in job
    assert job.get("HF_HOME") == ("/scratch/hf" if kind == "none" else None)
    assert (job.get("LD_LIBRARY_PATH") == "/opt/of-this-shell") is (where == "here" and kind == "none")
    (folder / "found").unlink()
    until(lambda: not (folder / ".secrets").exists())
    assert [each for each in folder.rglob("*") if each.is_file() and token.encode() in each.read_bytes()] == []
