"""`restart.max` on the real Slurm: a rank that is halted ends its attempt, and the next one continues bit for bit on
another node; what Slurm starts again is counted too."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from pathlib import Path

import pytest

from launcher.probe.slurm_commands import call
from launcher.runs import store
from tests import patience
from tests.launcher import warm
from tests.launcher.slurm.bench import ended, job_of, until
from tests.launcher.slurm.submitted import Submitted, submitted_by
from tests.launcher.slurm.trainers import LONG, kill, output_of, processes, shell, then_warm

SCRIPT = """\
import os, time, torch
from torch import distributed, nn
from amp_launcher import job
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(8, 8)
net = nn.parallel.DistributedDataParallel(net) if "RANK" in os.environ else net
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path, step = job.checkpoint_dir() / "net.pt", 0
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    step = saved["step"]
print(f"{os.environ['SLURMD_NODENAME']} begun at {step}{os.linesep}", end="", flush=True)  # ranks share the log
while step < 200:
    optimizer.zero_grad()
    (net(torch.ones(4, 8)) ** 2).mean().backward()
    optimizer.step()
    step += 1
    job.log(step, loss=0.5)
    if os.environ.get("RANK", "0") == "0":
        aside = path.with_suffix(".aside")
        torch.save({"net": net.state_dict(), "step": step}, aside)
        aside.rename(path)
    later = job.checkpoint_dir().parent.joinpath("attempts/2").exists()
    time.sleep(float(os.environ.get("PACE", 0.1 if later else 1.0)))  # not done before a rank is halted
ends = [weight.double().sum().item().hex() for weight in net.parameters()]
print(f"end {ends}{os.linesep}", end="", flush=True)
"""


def requests(root: Path) -> dict[str, tuple[str, ...]]:
    (root / "train.py").write_text(SCRIPT)
    watch = (f"watchdog.after={patience.scaled(20):g}", "watchdog.action=restart", "restart.max=1")
    ranks = ("train.processes=2", "cluster.cpus=2", "amp=o0")
    script = ("recipe=script", "script=train.py")
    quick = f"python={warm.python()}"
    return {
        "job": (*script, *ranks, *watch, f"python={then_warm(root, '')}"),
        "whole": (*script, *ranks, quick, "env.PACE=0"),
        "node": (*script, quick, "amp=o0", "restart.max=1", "env.PACE=2"),
    }


jobs = submitted_by(requests)


def trainers(folder: Path) -> list[int]:
    """The processes of the run's ranks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, environ = ((entry / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            if f"run={folder}".encode() in words and b"RANK=1" in environ:
                found.append(int(entry.name))
    return found


def has(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


def begun(log: Path) -> set[tuple[str, int]]:
    """The node and the step that the ranks of an attempt began at."""
    return {(node, int(step)) for node, step in re.findall(r"(n\d) begun at (\d+)", log.read_text())}


@pytest.mark.slow
def test_a_halted_rank_has_its_run_continued_on_another_node(jobs: Submitted) -> None:
    folder = jobs.folder("job")
    until(lambda: (folder / "metrics.jsonl").exists() and "loss" in (folder / "metrics.jsonl").read_text(), LONG)
    (rank,) = trainers(folder)
    os.kill(rank, signal.SIGSTOP)
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("done", 2), output_of(folder)
    before, after = (begun(folder / f"attempts/{number}/stdout.log") for number in (1, 2))
    assert len(after) == 1 and before != after  # each attempt is on one node
    ((node, _),) = before
    assert all(step > 0 for _, step in after)
    assert not {node} & {other for other, _ in after}
    jobs.done("whole")
    whole, end = (sorted(re.findall("end .*", text)) for text in (jobs.output("whole"), jobs.output("job", 2)))
    assert len(whole) == 2 and end == whole  # bit for bit
    reason = store.read_or_empty(folder / "attempts/1" / store.ENDED)["reason"]
    assert reason.startswith("it took no step any more after step ")
    assert reason.endswith(f"; restart 1 of 1; {node} is excluded from it")
    assert reason in jobs.launcher("ls", folder.name, f"run_root={folder.parent}").stdout


@pytest.mark.slow
def test_a_failed_node_uses_a_restart(jobs: Submitted) -> None:
    folder = jobs.folder("node")
    for attempt in (1, 2):
        log = folder / f"attempts/{attempt}/stdout.log"
        until(functools.partial(has, log, "begun"), LONG)
        until((folder / "checkpoints/net.pt").exists, LONG)
        # Ending the node would end the jobs of other tests. This leaves the attempt as a failed node does.
        kill([*processes(folder), shell(folder)])
        record = {"schema": 1, "state": "interrupted", "attempt": attempt, "reason": "its node n9 failed"}
        store.write_json(folder / f"attempts/{attempt}" / store.ENDED, record)
        assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
    seen = ended(folder, LONG)
    assert (seen.name, seen.attempt) == ("failed", 3), output_of(folder)
    assert seen.reason == "its node n9 failed; not restarted: 1 of 1 restarts used (restart.max)"
    assert not has(folder / "attempts/3/stdout.log", "begun")
    assert "failed" in jobs.launcher("ls", folder.name, f"run_root={folder.parent}").stdout
