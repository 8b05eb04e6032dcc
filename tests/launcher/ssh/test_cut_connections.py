"""Connections that are cut or stalled start nothing twice and lose no result. `make faults` cuts at more moments."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from launcher.errors import Unavailable
from launcher.runs import remote_record, run_roots, selection
from launcher.ssh import host, logs, remote_status
from launcher.ssh.failures import Retries
from launcher.ssh.host import Host, hello
from tests.launcher.ssh.far import HOLD, before_requests, until
from tests.launcher.ssh.ways import address

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "3"))


def test_a_cut_submission_starts_its_run_once_or_reports_that_it_did_not(far, proxy, moments):
    began = proxy.up
    far.submit("steps=1")
    host.close_all()
    size = proxy.up - began
    for _ in range(ROUNDS):
        before = set(far.runs())
        proxy.cut_after_up = proxy.up + moments.randrange(size)
        done = far.type(*far.words, "steps=1", f"seed={moments.randrange(1000)}")
        host.close_all()
        proxy.cut_after_up = None
        new = set(far.runs()) - before
        assert "Traceback" not in done.err
        if done.code == 0:
            # Cut after it had begun, it was asked again.
            assert new == set(done.out.split())
        else:
            assert done.code == 3, done.err
            assert len(new) <= 1
        for run in new:
            far.until(run, "done")
            assert far.attempts(run) == [1]


def test_a_submission_whose_answer_is_lost_starts_its_run_once(far, proxy, monkeypatch):
    """The far side has all it needs, and nobody hears it say so."""
    monkeypatch.setattr("launcher.executors.ssh.submit_client.TRIES", 1)

    def cut_once_it_runs():
        until(lambda: any(map(far.attempts, far.runs())))
        proxy.cut()

    def silence(host, request):
        if request == "submit":
            proxy.mute = True
            threading.Thread(target=cut_once_it_runs).start()

    with before_requests(monkeypatch, silence):
        assert "may have been started or not" in far.refused(*far.words, "steps=3", HOLD, code=3)
    (run,) = selection.run_names(run_roots.remote())
    assert far.runs() == [run]
    proxy.refusing = True
    assert far.state(run) == "unreachable"
    proxy.refusing = proxy.mute = False
    assert far.until(run, "running") == "running"
    assert far.attempts(run) == [1]
    assert remote_record.read(far.pointer(run)).submitter is None


def test_a_repeated_submission_request_starts_its_runs_once(far, monkeypatch):
    answers = []
    ask = Host.ask

    def twice(self, request, /, *values, **named):
        if request == "submit":
            answers.append(ask(self, request, *values, **named))
        return ask(self, request, *values, **named)

    monkeypatch.setattr(Host, "ask", twice)
    cells = far.submit("steps=1", "seed=1,2")
    assert answers == [cells]
    assert sorted(far.runs()) == cells
    far.until(cells[1], "done")
    assert [far.attempts(cell) for cell in cells] == [[1], [1]]


def test_a_run_that_never_arrived_is_lost_only_once_that_is_certain(far, proxy, monkeypatch):
    monkeypatch.setattr("launcher.executors.ssh.submit_client.TRIES", 1)
    with before_requests(monkeypatch, lambda host, request: request == "submit" and proxy.cut()):
        assert far.type(*far.words, "steps=1").code == 3
    (run,) = selection.run_names(run_roots.remote())
    assert far.runs() == []
    pointer = remote_record.read(far.pointer(run))
    dead = pointer.submitter._replace(start=1)
    assert far.state(run) == "queued", "its launcher lives"
    far.folder(run).mkdir(parents=True)  # as the far side lays it down before it starts it
    assert far.state(run) == "queued"
    far.folder(run).rmdir()
    remote_record.write(far.pointer(run), pointer._replace(submitter=dead))
    assert far.state(run) == "unreachable", "the far side may still be at it"
    early = pointer.created - remote_status.DOUBT
    remote_record.write(far.pointer(run), pointer._replace(submitter=dead, created=early))
    assert far.state(run) == "lost"
    assert far.type("rm", "--forget", run).code == 0


def test_followed_logs_are_complete_although_the_connection_is_cut(far, proxy, moments, monkeypatch):
    """A host that can't be reached at first is an error, so the cuts follow answers, the first one at once."""
    monkeypatch.setattr(Retries, "PAUSES", (0.1,))
    text = "for n in range(40000): print('line', n, 'x' * (n % 50)) or (n % 800 == 0 and time.sleep(0.06))"
    (run,) = far.submit("steps=1", f"env.BEHAVIOUR={text}")
    until(lambda: far.attempts(run))
    cuts, ask = [], logs._ask

    def asking(*values, **options):
        piece = ask(*values, **options)
        if not cuts:
            proxy.cut()
        if len(cuts) < 2 * ROUNDS:
            cuts.append(threading.Timer(moments.uniform(0, 0.5), proxy.cut))
            cuts[-1].start()
        return piece

    monkeypatch.setattr(logs, "_ask", asking)
    done = far.type("logs", "-f", run)
    for timer in cuts:
        timer.join()
    assert done.code == 0, done.err
    assert "to continue where it was" in done.err
    assert done.out == (far.folder(run) / "attempts/1/stdout.log").read_text()


def test_a_cut_fetch_continues_at_its_offset(far, proxy, moments, tmp_path, monkeypatch):
    monkeypatch.setattr(Retries, "PAUSES", (0.05,))
    (run,) = far.submit("steps=1")
    far.until(run, "done")
    size = 24 * 2**20
    content = moments.randbytes(size)
    (far.folder(run) / "checkpoints/large").write_bytes(content)
    began = proxy.down
    proxy.cuts_after_down = sorted(began + int(moments.uniform(0.1, 0.9) * size) for _ in range(3))
    done = far.ok("fetch", run, f"to={tmp_path / 'got'}")
    assert not proxy.cuts_after_down and "to continue where it was" in done.err
    assert (tmp_path / "got" / run / "checkpoints/large").read_bytes() == content
    # A fresh start after each cut would have taken as much again each time.
    assert proxy.down - began < 1.6 * size
    assert not list((tmp_path / "got").rglob(".*.part"))


def test_a_fetch_that_is_cut_off_waits_for_the_host_and_reports_it_once(far, proxy, monkeypatch):
    monkeypatch.setattr(Retries, "PAUSES", (0.05,))
    monkeypatch.setattr(Retries, "PATIENCE", 0.5)
    (run,) = far.submit("steps=1")
    far.until(run, "done")

    def cut(host, request):
        if request == "files":
            Path(far.config).write_text(Path(far.config).read_text().replace(f"Port {proxy.port}", "Port 1"))
            proxy.cut()

    with before_requests(monkeypatch, cut):
        done = far.type("fetch", run)
    assert done.code == 3
    assert done.err.count("to continue where it was") == 1


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_stalled_network_is_reported_and_nothing_hangs(far, proxy, transport):
    reached = Host(address(far.config, transport=transport))
    reached.ask("hello", hello)
    reached.silence = 1.0
    proxy.stalled = True
    with pytest.raises(Unavailable, match="has sent nothing for 1 s: the network or the host is stuck"):
        reached.ask("hello", hello)
    with pytest.raises(Unavailable):
        Host(address(far.config, transport=transport, connect_timeout=1)).ask("hello", hello)
    proxy.stalled = False
    reached.silence = host.SILENCE  # a login takes more than a second on a machine with much to do
    assert reached.ask("hello", hello)
    reached.close()
