"""Runs over SSH from beginning to end: real sshd, real processes; only the trainer is a stand-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from launcher.runs import processes, remote_record, store
from launcher.ssh import host
from tests.launcher.ssh.far import HOLD, asked, away, until


def test_a_remote_run_is_started_listed_logged_and_recorded_here(far, monkeypatch):
    (run,) = far.submit("steps=2", "amp=o1", "batch=64", HOLD)
    assert far.until(run, "running")
    listed = far.type("ls").out
    assert "HOST" in listed and "box" in listed and run in listed
    host.close_all()  # it goes on without the connection
    identity = processes.from_json(far.status(run)["process"])
    stat = Path(f"/proc/{identity.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[3]) == identity.pid, "it leads a session of its own"
    signals = dict(line.split(":\t") for line in Path(f"/proc/{identity.pid}/status").read_text().splitlines())
    assert not int(signals["SigIgn"], 16) & 1 << signal.SIGHUP - 1, "it can be told to hang up"
    assert far.state(run) == "running"
    far.release(run)
    assert far.until(run, "done") == "done"
    with asked(monkeypatch) as requests:  # a run that has ended is not asked about again
        shown = far.type("ls", run).out
        assert run in far.type("ls").out and far.state(run) == "done"
    assert requests == []
    assert f"box:{far.root}/{run}" in shown and "proved" in shown and "0.5000" in shown
    logs = far.type("logs", run)
    assert logs.out == (far.folder(run) / "attempts/1/stdout.log").read_text()
    assert logs.out.splitlines()[-1] == "step 2"
    assert far.type("logs", "--lines", "2", run).out == "step 1\nstep 2\n"
    assert "it has 1" in far.refused("logs", "--attempt", "3", run)
    plan = store.read_or_empty(far.folder(run) / "plan.json")
    assert plan["words"] == ["amp=o1", "batch=64", "steps=2"]
    levels = "amp_launcher/precision/levels.py"
    code = far.root / ".code" / plan["code"]
    assert (code / levels).read_bytes() == (Path(__file__).parents[3] / levels).read_bytes()
    assert store.read_or_empty(far.folder(run) / "provenance.json")["code"]["digest"] == plan["code"]
    for words in (("logs",), ("watch",), ("cancel",), ("resume",), ("rm",), ("fetch",)):
        with asked(monkeypatch) as requests:
            assert far.type(*words, "no-such-run").code == 2
        assert requests == []


def test_a_shared_remote_run_is_readable_for_its_group_and_its_code_is_not(far):
    (run,) = far.submit("steps=1", "share=group")
    assert far.until(run, "done") == "done"
    assert far.root.stat().st_mode & 0o7777 == 0o3770
    modes = {name: (far.folder(run) / name).stat().st_mode & 0o777 for name in ("", "submission.json", "status.json")}
    assert modes == {"": 0o750, "submission.json": 0o640, "status.json": 0o640}
    (code,) = far.root.glob(".code-*")
    assert {path.stat().st_mode & 0o777 for path in (code, *code.rglob("*")) if path.is_dir()} == {0o700}


def test_a_listing_of_local_runs_imports_nothing_of_ssh(far, tmp_path):
    program = (
        "import sys; from launcher.__main__ import main; main(['ls']); "
        "print([name for name in sys.modules if name.startswith(('fabric', 'paramiko', 'launcher.ssh'))])"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_plan_is_what_would_be_submitted_and_is_replayed_without_a_host(far, tmp_path, monkeypatch):
    done = far.ok("plan", *far.words, "steps=3", "--json")
    planned = json.loads(done.out)
    assert planned["plans"][0]["run_root"] == str(far.root)
    recorded = tmp_path / "facts.json"
    recorded.write_text(done.out)
    with asked(monkeypatch) as requests:
        again = far.type("plan", *far.words, "steps=3", "--json", "--facts", str(recorded))
    assert requests == []
    assert json.loads(again.out)["plans"] == planned["plans"]
    (run,) = far.submit("steps=3")
    submitted = store.read_or_empty(far.folder(run) / "plan.json")
    assert {**submitted, "run_id": "RUN_ID", "command": None} == {**planned["plans"][0], "command": None}


def test_watching_shows_progress_and_ends_with_the_result_and_logs_are_followed(far):
    (run,) = far.submit("steps=40", "env.PAUSE=0.05")
    done = far.ok("logs", "-f", run)
    assert [line for line in done.out.splitlines() if line.startswith("step")] == [f"step {n}" for n in range(1, 41)]
    done = far.ok("watch", run)
    assert "done" in done.out and "proved" in done.out and f"box:{far.root}/{run}" in done.out
    here = (far.pointer(run) / "metrics.jsonl").read_bytes()
    assert here == (far.folder(run) / "metrics.jsonl").read_bytes()


def test_a_cancelled_run_is_saved_and_resumed_from_there(far):
    (run,) = far.submit("steps=3", HOLD)
    until(lambda: "step 1" in far.type("logs", run).out)
    done = far.ok("cancel", run)
    assert "cancelled" in done.out and "saved at step" in done.out
    assert far.state(run) == "cancelled"
    assert "batch can't change" in far.refused("resume", run, "batch=7")
    assert "cluster.host can't change" in far.refused("resume", run, "cluster.host=other")
    far.release(run)
    done = far.ok("resume", run, "steps=12", "wait=true")
    assert "done" in done.out and "attempt 2" in done.out
    numbers = [line for line in far.type("logs", run).out.splitlines() if line.startswith("step")]
    assert numbers[-1] == "step 12" and numbers[0] != "step 1"
    assert far.type("resume", run).code == 2


def test_a_run_that_is_known_to_have_ended_is_cancelled_and_forgotten_without_its_host(far, tmp_path, monkeypatch):
    (run,) = far.submit("steps=1")
    far.until(run, "done")
    away(far)
    error = far.refused("fetch", run, f"to={tmp_path / 'got'}", code=3)  # it looks again, and forgets nothing
    assert "the connection is refused" in error and "to continue where it was" not in error
    assert not (tmp_path / "got").exists() and far.state(run) == "done"
    with asked(monkeypatch) as requests:
        done = far.type("cancel", run)
    assert (done.code, requests) == (0, [])
    assert done.out.startswith(f"{run}  already done")
    assert far.type("rm", "--forget", run).out == f"{run}  forgotten\n"
    assert far.folder(run).is_dir() and not far.pointer(run).exists()


def test_a_failed_run_is_reported_with_the_end_of_its_log_and_its_exit_code(far):
    waited = far.type(*far.words, "env.BEHAVIOUR=sys.exit('out of luck')", "wait=true")
    assert waited.code == 1 and "out of luck" in waited.out
    (run,) = far.runs()
    shown = far.type("ls", run).out
    assert "out of luck" in shown and "box:" in shown
    watched = far.type("watch", run)
    assert watched.code == 1 and "out of luck" in watched.out


def test_deleting_asks_the_host_and_then_forgets(far):
    (run,) = far.submit("steps=3", HOLD)
    far.until(run, "running")
    assert "not ended yet" in far.refused("rm", run)
    assert far.folder(run).is_dir() and far.pointer(run).is_dir()
    removed = far.ok("rm", "--force", run)
    assert removed.out == f"{run}  moved to the trash\n" and f"in the trash {far.root}/.trash: 1 run" in removed.err
    assert "after a week the next `rm` of a run there" in removed.err and "rm --now" not in removed.err
    assert not far.folder(run).exists() and not far.pointer(run).exists()
    (there,) = far.root.glob(f".trash/*/{run}")
    (record,) = far.pointer(run).parent.glob(f".trash/*/{run}")
    there.rename(far.folder(run))
    record.rename(far.pointer(run))
    assert far.state(run) == "cancelled"
    unsaid = far.refused("rm", "--now", run[:-1])
    assert re.search(rf"{run} +\d+[.\d]* [KM]iB", unsaid) and "or say --yes" in unsaid
    assert far.ok("rm", "--now", "--yes", run[:-1]).out == f"{run}  deleted\n"
    assert not far.folder(run).exists() and not list(far.root.glob(".trash/*/*"))


def test_a_run_whose_folder_is_gone_there_is_lost(far):
    (run,) = far.submit("steps=3", HOLD)
    until(lambda: far.status(run).get("process"))
    assert far.state(run) == "running"
    processes.end([processes.Target(processes.from_json(far.status(run)["process"]), run)], 0)
    shutil.rmtree(far.folder(run))
    assert far.state(run) == "lost"
    assert "there is no run" in far.type("logs", run).err
    assert far.type("fetch", run).code == 2
    assert "there is no run" in far.refused("resume", run)
    removed = far.type("rm", run)
    assert removed.code == 0 and "there is no run" in removed.err


def test_a_host_that_does_not_answer_makes_its_runs_unreachable_and_others_are_shown(far, tmp_path):
    (here,) = far.submit("steps=3", HOLD)
    (there,) = far.submit("steps=3", HOLD)
    (unseen,) = far.submit("steps=1")
    far.until(there, "running")
    pointer = remote_record.read(far.pointer(there))
    wrong = tmp_path / "wrong"
    wrong.write_text(Path(far.config).read_text().replace(str(far.testbed.ssh.port), "1"))
    address = pointer.address._replace(config=str(wrong))
    remote_record.write(far.pointer(there), pointer._replace(address=address))
    remote_record.write(far.pointer(unseen), pointer._replace(address=address))
    shown = far.type("ls", unseen).out
    assert "submitted   not known\nattempts    not known\n" in shown
    for words in ((), ("--attempt", "1")):
        error = far.refused("logs", unseen, *words, code=3)
        assert "refused" in error and "has printed nothing" not in error and "no such attempt" not in error
    listed = far.ok("ls")
    rows = {line.split()[0]: line.split()[1] for line in listed.out.splitlines() if line[:2] == "20"}
    assert rows[here] == "running" and rows[there] == "unreachable"
    assert "running" in listed.out.splitlines()[-1] and "refused" in listed.out.splitlines()[-1]
    done = far.type("cancel", there)
    assert done.code == 3 and done.out.startswith(f"{there}  not ended: ")
    assert done.out.count("refused") == 1 and "; running " in done.out and done.out.endswith(" ago\n")
    assert far.type("logs", there).code == 3
    assert far.type("rm", there).code == 3
    assert far.pointer(there).exists()
    remote_record.write(far.pointer(there), pointer)
    assert far.state(there) == "running"


def test_the_arms_of_a_remote_comparison_are_copied(far):
    (run,) = far.submit("steps=3", HOLD)
    until(lambda: far.status(run).get("process"))
    plan = {**store.read_or_empty(far.folder(run) / "plan.json"), "arms": [{"arm": "001", "swept": [["amp", "o0"]]}]}
    (far.folder(run) / "plan.json").write_text(json.dumps(plan))
    arm = far.folder(run) / "arms/001"
    arm.mkdir(parents=True)
    (arm / "result.json").write_text('{"schema": 1, "status": "done"}')
    (arm / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    far.type("ls", run)
    here = far.pointer(run) / "arms/001"
    assert store.read_or_empty(here / "result.json")["status"] == "done"
    assert (here / "metrics.jsonl").read_bytes() == (arm / "metrics.jsonl").read_bytes()
    # A run that goes on from a checkpoint has cut its metrics back.
    (arm / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "again": true}\n{"step": 3}\n')
    far.type("ls", run)
    assert (here / "metrics.jsonl").read_bytes() == (arm / "metrics.jsonl").read_bytes()
