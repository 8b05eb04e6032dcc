"""What goes wrong on the way, done to real connections: nothing is started twice, nothing is shown as running that is
not, no result is lost. `make faults` does each at many random moments."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from launcher.runs import processes, remote_record, run_roots, selection
from launcher.ssh import host, remote_status
from tests.launcher.ssh.far import HOLD, asked, until
from tests.launcher.ssh.ways import configuration


def test_a_launcher_killed_while_it_submits_starts_its_run_once_or_not(far, moments, monkeypatch):
    command = [sys.executable, "-m", "launcher", *far.words, "steps=3", HOLD]
    for _ in range(int(os.environ.get("FAULT_ROUNDS", "3"))):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
            time.sleep(moments.uniform(0.2, 1.2))
            started.kill()
            started.communicate()
    named = selection.run_names(run_roots.remote())
    assert set(far.runs()) <= set(named)
    monkeypatch.setattr(remote_status, "DOUBT", 30.0)
    for run in named:
        # The far side carries out what has reached it.
        far.until(run, "running", "lost")
        assert far.attempts(run) in ([], [1])
        assert far.type("rm", "--force", run).code == 0


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


def test_runs_survive_a_restart_of_sshd(far, tmp_path, own_sshd):
    server = own_sshd()
    far.config = configuration(tmp_path, far.testbed, **server.lines)
    (run,) = far.submit("steps=3", HOLD)
    assert far.until(run, "running")
    server.kill()
    assert far.state(run) == "unreachable"
    assert processes.is_alive(processes.from_json(far.status(run)["process"]))
    server.start()
    assert far.state(run) == "running"
    assert far.attempts(run) == [1]


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
    assert far.attempts(run) == [1, 2]


def test_a_run_has_taken_as_long_as_the_clock_of_its_host_tells(far):
    moved = "import sys, time; now = time.time; time.time = lambda: now() + 7200; exec(sys.argv[1])"
    ahead = far.program("ahead", f'#!/bin/sh\nexec python3 -c "{moved}" "$2"\n')
    (run,) = far.submit("steps=3", HOLD, f"cluster.python={ahead}")
    far.until(run, "running")
    far.write_status(run, started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 7200 - 600)))
    assert re.search(rf"{run} +running .* 10m\d\ds ", far.ok("ls").out)


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
    home = far.program("launch", f'#!/bin/sh\nHOME={small_disk} exec python3 "$@"\n')
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
            out, err = following.communicate()
        assert out == (far.folder(run) / "attempts/1/stdout.log").read_bytes() and len(out) > 100 * lines
        used.append(int(err.split()[-1]))
    assert used[1] - used[0] < 24 * 1024, f"KiB: {used}"


def test_twelve_runs_are_submitted_and_followed_at_once_through_one_connection(far, proxy, monkeypatch):
    with asked(monkeypatch) as requests:
        cells = far.submit("steps=2", f"seed={','.join(map(str, range(12)))}")
    assert (len(cells), requests) == (12, ["probe", "has_code", "write_code", "submit"])
    sweep, _, last = cells[-1].rpartition("-")
    assert last == "011" and selection.sweep_runs(str(far.root), sweep)
    far.ok("watch", sweep)
    assert proxy.connections == 1
    assert all(far.attempts(cell) == [1] for cell in cells)
    assert all((far.pointer(cell) / "metrics.jsonl").stat().st_size > 0 for cell in cells)


def test_following_goes_on_after_the_connection_stalled(far, tmp_path, own_sshd):
    """As where a lid was closed: for longer than a silence is borne, nothing comes, and nothing is closed."""
    server = own_sshd()
    program = "import sys; from launcher.ui import live as watch; watch.LONGEST = 0.5; "
    program += (
        "from launcher.ssh import host; host.SILENCE = 8.0; "  # a login takes seconds on a machine with much to do
    )
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
        assert {verb: process.wait() for verb, process in following.items()} == {"logs": 0, "watch": 0}
        assert shown["logs"].read_text() == (far.folder(run) / "attempts/1/stdout.log").read_text()
        assert "is stuck" in (tmp_path / "logs.err").read_text() + shown["watch"].read_text()
        assert "done after" in shown["watch"].read_text()
    finally:
        for process in following.values():
            process.kill()
            process.wait()
