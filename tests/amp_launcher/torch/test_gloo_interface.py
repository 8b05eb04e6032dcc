"""Two nodes in network namespaces of their own, whose names mean 127.0.1.1 on themselves, as on Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_launcher.world import interfaces

pytest.importorskip("torch")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
TALK = """\
import datetime, torch, torch.distributed as distributed
distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
total = torch.ones(1)
distributed.all_reduce(total)
print("total", total.item(), flush=True)
distributed.destroy_process_group()
"""


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    if os.geteuid() or shutil.which("ip") is None or subprocess.run(["unshare", "-n", "true"]).returncode:
        pytest.skip("network namespaces need root, iproute2 and the permission for them")
    names = (f"launcher-{os.getpid()}-a", f"launcher-{os.getpid()}-b")
    ends = (f"a{os.getpid() % 10**6}", f"b{os.getpid() % 10**6}")
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", ends[0], "netns", names[0], "type", "veth", "peer", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", end)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", end, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_gloo_connects_nodes_whose_own_names_are_loopback(namespaces: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    workers = ",".join(f"{address}:{port}" for address, port in zip(ADDRESSES, (20101, 20102), strict=True))
    nodes = []
    for number, name in enumerate(namespaces):
        (tmp_path / f"hosts-{number}").write_text(f"127.0.0.1 localhost\n127.0.1.1 node-{number}\n")
        words = ["-m", "amp_launcher.torch.node", f"--workers={workers}", f"--number={number}"]
        words += ["-m", "torch.distributed.run", "--nproc-per-node=1", "-m", "talk"]
        inside = f'mount --bind {tmp_path}/hosts-{number} /etc/hosts && hostname node-{number} && exec "$@"'
        argv = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "bash", "-c", inside, "bash"]
        environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}", "OMP_NUM_THREADS": "1"}
        environment.pop("GLOO_SOCKET_IFNAME", None)
        started = subprocess.Popen(
            [*argv, sys.executable, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        nodes.append(started)
    try:
        said = [node.communicate()[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], [text[-800:] for text in said]
    assert all("total 2.0" in text for text in said)


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "lo"), ("no.such.host.invalid", "")])
def test_the_interface_is_that_of_the_route(host: str, name: str) -> None:
    assert interfaces.toward(host) == name
