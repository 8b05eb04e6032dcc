"""A container with a quota and a limit, as an interactive one has them: what is taken for this machine inside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from amp_launcher.world import cgroup_limits
from launcher import bash_files
from launcher.script import telemetry
from tests.testbed.facts import Testbed

ROOT = Path(__file__).parents[3]
LIMIT = 256 * 2**20
INSIDE = """
import os, subprocess
from amp_launcher.world import cgroup_limits
held = bytearray(os.urandom(1)) * (64 * 2**20)
sampled = subprocess.run(["bash", "/sampler"], stdout=subprocess.PIPE, text=True, check=True).stdout
print(cgroup_limits.cpus(), cgroup_limits.memory())
print(sampled, end="")
"""


def test_cpus_and_memory_are_those_of_the_container(testbed: Testbed, tmp_path: Path) -> None:
    functions = bash_files.text("launcher.script", "telemetry.sh")
    sample = "limit=0 group='' used='' idle_files=''; find_memory_limit; sample_host"
    (tmp_path / "sampler").write_text(f"set -u\n{functions}\n{sample}\n")
    limits = ["--cpus=0.5", f"--memory={LIMIT}", "--ulimit=nofile=1024", "--network=none"]
    mounts = [f"--volume={ROOT / 'amp_launcher'}:/code/amp_launcher:ro", f"--volume={tmp_path / 'sampler'}:/sampler:ro"]
    command = ["docker", "run", "--rm", *limits, *mounts, "--workdir=/code", testbed.images["python"].docker]
    argv, environment = [*command, "/usr/bin/python3", "-c", INSIDE], {**os.environ, **testbed.environment}
    run = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, sampled = run.stdout.splitlines()
    assert first == f"1 {LIMIT}"
    (host,) = telemetry.parse_host([sampled])
    assert host.known("memory_total") == [256.0]
    (used,) = host.known("memory")
    assert 64 < used < 192  # what this process holds; the machine's own would be gigabytes, or none of it
    assert cgroup_limits.memory() > LIMIT
