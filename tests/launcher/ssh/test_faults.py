"""What goes wrong on the way, done to real connections: nothing is started twice, nothing is shown as running that is
not, no result is lost. `make faults` does each at many random moments."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.errors import Unavailable
from launcher.runs import processes, remote_record, run_roots, selection, store
from launcher.ssh import host, logs, remote_status
from launcher.ssh.failures import Retries
from launcher.ssh.host import Host, hello
from tests.launcher.ssh.far import HOLD, asked, before_requests, until
from tests.launcher.ssh.own_sshd import OwnSshd
from tests.launcher.ssh.ways import address, configuration
from tests.testbed.proxy import Proxy

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "3"))


@pytest.fixture
def moments(request):
    """Random numbers that the seed in FAULT_SEED repeats."""
    seed = int(os.environ.get("FAULT_SEED") or random.randrange(2**32))
    print(f"FAULT_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def proxy(far, tmp_path):
    """Between the launcher and the far sshd; known to that by its own port."""
    with Proxy(far.testbed.ssh.port) as proxy:
        key = Path(far.testbed.ssh.known_hosts).read_text().splitlines()[0].partition(" ")[2]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{proxy.port} {key}\n")
        far.config = configuration(tmp_path, far.testbed, Port=str(proxy.port), UserKnownHostsFile=str(known))
        yield proxy
        host.close_all()


def there(far) -> list[str]:
    return selection.run_names(str(far.root)) if far.root.exists() else []


def attempts(far, run: str) -> list[int]:
    return store.attempts(far.folder(run))


def test_a_cut_submission_starts_its_run_once_or_reports_that_it_did_not(far, proxy, moments):
    began = proxy.up
    far.submit("steps=1")
    host.close_all()
    size = proxy.up - began
    for _ in range(ROUNDS):
        before = set(there(far))
        proxy.cut_after_up = proxy.up + moments.randrange(size)
        done = far.type(*far.words, "steps=1", f"seed={moments.randrange(1000)}")
        host.close_all()
        proxy.cut_after_up = None
        new = set(there(far)) - before
        assert "Traceback" not in done.err
        if done.code == 0:
            # Cut after it had begun, it was asked again.
            assert new == set(done.out.split())
        else:
            assert done.code == 3, done.err
            assert len(new) <= 1
        for run in new:
            far.until(run, "done")
            assert attempts(far, run) == [1]


def test_a_submission_whose_answer_is_lost_starts_its_run_once(far, proxy, monkeypatch):
    """The far side has all it needs, and nobody hears it say so."""
    monkeypatch.setattr("launcher.executors.ssh.submit_client.TRIES", 1)

    def silence(host, request):
        if request == "submit":
            host.silence, proxy.mute = 1.5, True

    with before_requests(monkeypatch, silence):
        assert "may have been started or not" in far.refused(*far.words, "steps=3", HOLD, code=3)
    (run,) = selection.run_names(run_roots.remote())
    until(lambda: there(far) == [run])
    proxy.refusing = True
    assert far.state(run) == "unreachable"
    proxy.refusing = proxy.mute = False
    assert far.until(run, "running") == "running"
    assert attempts(far, run) == [1]
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
    assert sorted(there(far)) == cells
    far.until(cells[1], "done")
    assert [attempts(far, cell) for cell in cells] == [[1], [1]]


def test_a_run_that_never_arrived_is_lost_only_once_that_is_certain(far, proxy, monkeypatch):
    monkeypatch.setattr("launcher.executors.ssh.submit_client.TRIES", 1)
    with before_requests(monkeypatch, lambda host, request: request == "submit" and proxy.cut()):
        assert far.type(*far.words, "steps=1").code == 3
    (run,) = selection.run_names(run_roots.remote())
    assert there(far) == []
    pointer = remote_record.read(far.pointer(run))
    dead = pointer.submitter._replace(start=1)
    assert far.state(run) == "queued", "its launcher lives"
    far.folder(run).mkdir(parents=True)  # as the far side lays it down before it starts it
    assert far.state(run) == "queued"
    far.folder(run).rmdir()
    remote_record.write(far.pointer(run), dataclasses.replace(pointer, submitter=dead))
    assert far.state(run) == "unreachable", "the far side may still be at it"
    early = pointer.created - remote_status.DOUBT
    remote_record.write(far.pointer(run), dataclasses.replace(pointer, submitter=dead, created=early))
    assert far.state(run) == "lost"
    assert far.type("rm", "--forget", run).code == 0


def test_a_launcher_killed_while_it_submits_starts_its_run_once_or_not(far, moments, monkeypatch):
    command = [sys.executable, "-m", "launcher", *far.words, "steps=3", HOLD]
    for _ in range(ROUNDS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
            time.sleep(moments.uniform(0.2, 1.2))
            started.kill()
            started.communicate()
    named = selection.run_names(run_roots.remote())
    assert set(there(far)) <= set(named)
    monkeypatch.setattr(remote_status, "DOUBT", 30.0)
    for run in named:
        # The far side carries out what has reached it.
        far.until(run, "running", "lost")
        assert attempts(far, run) in ([], [1])
        assert far.type("rm", "--force", run).code == 0


def test_followed_logs_are_complete_although_the_connection_is_cut(far, proxy, moments, monkeypatch):
    """A host that can't be reached at first is an error, so the cuts follow answers, the first one at once."""
    monkeypatch.setattr(Retries, "PAUSES", (0.1,))
    text = "for n in range(40000): print('line', n, 'x' * (n % 50)) or (n % 800 == 0 and time.sleep(0.06))"
    (run,) = far.submit("steps=1", f"env.BEHAVIOUR={text}")
    until(lambda: attempts(far, run))
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


def test_a_slow_answer_is_no_stall(far):
    """While a request takes longer than the silence that is borne, its host says that it lives."""
    deaf = "env.BEHAVIOUR=import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
    (run,) = far.submit("steps=1", deaf)
    until(lambda: "begun" in far.type("logs", run).out)
    reached = host.connect(remote_record.read(far.pointer(run)).address)
    reached.silence = 7.0  # more than a heartbeat
    named = [{"root": str(far.root), "id": run}]
    began = time.monotonic()
    assert reached.ask("cancel", list, runs=named, now=False, stop_grace=8, term_grace=0) == [""]
    assert time.monotonic() - began > reached.silence
    assert far.state(run) == "cancelled"


def test_runs_survive_a_restart_of_sshd(far, tmp_path):
    server = OwnSshd(far.testbed, tmp_path)
    try:
        far.config = configuration(tmp_path, far.testbed, **server.lines)
        (run,) = far.submit("steps=3", HOLD)
        assert far.until(run, "running")
        server.kill()
        assert far.state(run) == "unreachable"
        assert processes.is_alive(processes.from_json(far.status(run)["process"]))
        server.start()
        assert far.state(run) == "running"
        assert attempts(far, run) == [1]
    finally:
        host.close_all()
        server.kill()


def test_a_run_is_lost_after_a_reboot_or_with_a_reused_pid_and_can_be_resumed(far):
    (run,) = far.submit("steps=3", HOLD)
    until(lambda: "step 1" in far.type("logs", run).out)
    status = far.status(run)
    far.write_status(run, started="2100-01-01T00:00:00Z")  # by a clock that is ahead
    listed = far.ok("ls")
    assert "running" in listed.out and "0s" in listed.out
    process = status["process"]
    assert processes.end([processes.Target(processes.from_json(process), run)], 0) == [[]]
    far.write_status(run, **{**status, "process": {**process, "pid": os.getpid()}})  # with another start time
    assert far.state(run) == "lost"
    remote_record.forget_state(far.pointer(run))
    far.write_status(run, **{**status, "process": {**process, "boot": "0" * 36}})
    shown = far.type("ls", run).out
    assert "lost" in shown and "restarted since" in shown
    far.release(run)
    far.ok("resume", run, "wait=true")
    assert attempts(far, run) == [1, 2]


@pytest.fixture
def small_disk(far):
    folder = far.there / "small"
    folder.mkdir()
    options = f"size=300k,uid={far.testbed.user.uid},mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True).returncode:
        pytest.skip("this machine may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_on_the_host_is_reported_and_nothing_is_left(far, small_disk):
    done = far.type(*far.words, f"run_root={small_disk}/runs")
    assert done.code in (2, 3) and "No space left" in done.err, done.err
    assert selection.run_names(f"{small_disk}/runs") == [] and selection.run_names(run_roots.remote()) == []


def test_a_full_home_on_the_host_is_reported(far, small_disk):
    home = far.there / "launch"
    home.write_text(f'#!/bin/sh\nHOME={small_disk} exec python3 "$@"\n')
    home.chmod(0o755)
    (small_disk / "fill").write_bytes(b"x" * 200_000)
    done = far.type(*far.words, f"cluster.python={home}")
    assert done.code == 3 and "No space left" in done.err and ".cache/launcher" in done.err


def test_a_long_log_is_followed_completely_in_little_memory(far):
    """`make faults` takes the whole 100 MB."""
    used = []
    for lines in (1, int(os.environ.get("LOG_MIB", "24")) * 2**20 // 100):
        (run,) = far.submit("steps=1", f"env.BEHAVIOUR=[print('%099d' % n) for n in range({lines})]")
        program = "import resource, sys; from launcher.__main__ import main; main(sys.argv[1:]); "
        program += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        with subprocess.Popen(
            [sys.executable, "-c", program, "logs", "-f", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as following:
            out, err = following.communicate(timeout=300)
        assert out == (far.folder(run) / "attempts/1/stdout.log").read_bytes() and len(out) > 100 * lines
        used.append(int(err.split()[-1]))
    assert used[1] - used[0] < 24 * 1024, f"KiB: {used}"


def test_forty_runs_are_submitted_and_followed_at_once_through_one_connection(far, proxy, monkeypatch):
    with asked(monkeypatch) as requests:
        cells = far.submit("steps=2", f"seed={','.join(map(str, range(40)))}")
    assert (len(cells), requests) == (40, ["probe", "has_code", "lay_code", "submit"])
    sweep, _, last = cells[-1].rpartition("-")
    assert last == "039" and selection.sweep_runs(str(far.root), sweep)
    far.ok("watch", sweep)
    assert proxy.connections == 1
    assert all(attempts(far, cell) == [1] for cell in cells)
    assert all((far.pointer(cell) / "metrics.jsonl").stat().st_size > 0 for cell in cells)


def test_following_goes_on_after_the_connection_stalled(far, tmp_path):
    """As where a lid was closed: for longer than a silence is borne, nothing comes, and nothing is closed."""
    server = OwnSshd(far.testbed, tmp_path)
    program = "import sys; from launcher.ui import live as watch; watch.LONGEST = 0.5; "
    program += "from launcher.ssh import host; host.SILENCE = 2.5; "
    program += "from launcher.__main__ import main; sys.exit(main(sys.argv[1:]))"
    following, shown = {}, {verb: tmp_path / verb for verb in ("logs", "watch")}
    try:
        far.config = configuration(tmp_path, far.testbed, **server.lines)
        (run,) = far.submit("steps=3", HOLD)
        host.close_all()
        for verb, words in (("logs", ["-f", run]), ("watch", [run])):
            command = [sys.executable, "-u", "-c", program, verb, *words]
            with open(shown[verb], "w") as out, open(tmp_path / f"{verb}.err", "w") as err:
                following[verb] = subprocess.Popen(command, stdout=out, stderr=err)
        until(lambda: "step 1\n" in shown["logs"].read_text() and "running\n" in shown["watch"].read_text())
        for pid in server.sessions():
            os.kill(pid, signal.SIGSTOP)
        far.release(run)
        assert {verb: process.wait(120) for verb, process in following.items()} == {"logs": 0, "watch": 0}
        assert shown["logs"].read_text() == (far.folder(run) / "attempts/1/stdout.log").read_text()
        assert "is stuck" in (tmp_path / "logs.err").read_text() + shown["watch"].read_text()
        assert "done after" in shown["watch"].read_text()
    finally:
        for process in following.values():
            process.kill()
            process.wait()
        server.kill()
