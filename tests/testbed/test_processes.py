"""Servers are started once, recorded, and ended by the process that was recorded and no other."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import processes
from tests.testbed.bed import Bed, TestbedError, check_folder, is_free, listens, wait_until
from tests.testbed.processes import Process, Server

LISTEN = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
time.sleep(600)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    for name in processes.names(bed):
        processes.stop(bed, name, patience=1)


def a_server(bed: Bed, configuration: str = "") -> Server:
    bed.choose_ports(["one"], ours=["one"])
    port = bed.ports()["one"]
    argv = (sys.executable, "-c", LISTEN, str(port))
    return Server(name="one", argv=argv, ready=lambda: listens(port), configuration=configuration, wait=60)


def test_a_server_runs_once_and_is_started_again_when_killed_or_configured_anew(here: Bed) -> None:
    assert processes.ensure(here, a_server(here, "old"))
    first = processes.running(here, "one")
    assert first and not processes.ensure(here, a_server(here, "old"))
    assert processes.running(here, "one") == first
    assert processes.ensure(here, a_server(here, "new"))
    second = processes.running(here, "one")
    assert second and not first.alive
    os.kill(second.pid, signal.SIGKILL)
    assert wait_until(lambda: not second.alive, 60)
    assert processes.running(here, "one") is None
    assert processes.ensure(here, a_server(here, "new"))


def test_a_server_that_fails_to_start_or_is_not_installed_is_named(here: Bed) -> None:
    argv = (sys.executable, "-c", "import sys; sys.exit('no such database')")
    with pytest.raises(TestbedError, match=r"(?s)one ended with 1 while starting.*no such database"):
        processes.ensure(here, Server(name="one", argv=argv, ready=lambda: False))
    with pytest.raises(TestbedError, match="one: /no/such/server is not installed"):
        processes.ensure(here, Server(name="one", argv=("/no/such/server",), ready=lambda: True))


def test_stopping_ends_the_children_too(here: Bed) -> None:
    argv = ("sh", "-c", "trap '' TERM; sleep 600 & echo ready; wait")
    processes.ensure(here, Server(name="one", argv=argv, ready=lambda: "ready" in here.log("one").read_text()))
    server = processes.running(here, "one")
    assert server
    children = processes.descendants(server.pid)
    assert len(children) == 1
    processes.stop(here, "one", patience=0.3)
    assert not server.alive and not children[0].alive


def test_a_pid_used_again_by_a_stranger_is_left_alone(here: Bed) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        real = Process.of(stranger.pid)
        assert real
        stale = dataclasses.replace(real, start=real.start - 1)
        stale.send(signal.SIGKILL)
        stale.end(patience=1)
        assert real.alive
        real.send(signal.SIGKILL)
    assert not real.alive


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    assert wait_until(lambda: Process.of(child.pid) is None, 60)
    assert Path(f"/proc/{child.pid}").exists()  # not reaped yet
    child.wait()


def test_a_port_that_a_stranger_took_is_chosen_anew_and_others_are_kept(here: Bed) -> None:
    here.choose_ports(["one", "two"], ours=[])
    before = here.ports()
    with socket.create_server(("127.0.0.1", before["one"])):
        here.choose_ports(["one", "two"], ours=[])
        after = here.ports()
        assert after["one"] != before["one"] and is_free(after["one"])
        assert after["two"] == before["two"]
        # Its own server's port looks taken as well, and stays.
        here.choose_ports(["one"], ours=["one"])
        assert here.ports() == after


def test_folders_that_some_part_would_trip_over_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="shorter folder"):
        check_folder(Path("/tmp") / ("x" * 80))
    with pytest.raises(TestbedError, match="syntax"):
        check_folder(Path("/tmp/with%j"))
    closed = Path("/tmp") / f"closed-{os.getpid()}"
    closed.mkdir(mode=0o700)
    try:
        with pytest.raises(TestbedError, match="closed to ordinary users"):
            check_folder(closed / "bed")
    finally:
        closed.rmdir()
