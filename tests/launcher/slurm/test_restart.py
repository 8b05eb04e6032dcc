"""`restart.max` on the real Slurm: a rank that is halted ends its attempt, and the next one runs on another node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from launcher.runs import store
from tests import patience
from tests.launcher.slurm.bench import ended, until
from tests.launcher.slurm.submitted import Submitted, submitted_by
from tests.launcher.slurm.trainers import LONG, output_of

SCRIPT = """\
import os, time, torch
from torch import distributed, nn
from amp_launcher import job
distributed.init_process_group("gloo")
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path, step = job.checkpoint_dir() / "net.pt", 0
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    step = saved["step"]
print(os.environ["SLURMD_NODENAME"], "begun at", step, flush=True)
while step < 200:
    optimizer.zero_grad()
    (net(torch.ones(4, 8)) ** 2).mean().backward()
    optimizer.step()
    step += 1
    job.log(step, loss=0.5)
    if distributed.get_rank() == 0:
        aside = path.with_suffix(".aside")
        torch.save({"net": net.state_dict(), "step": step}, aside)
        aside.rename(path)
    time.sleep(0.1 if job.checkpoint_dir().parent.joinpath("attempts/2").exists() else 0.3)
"""


def requests(root: Path) -> dict[str, tuple[str, ...]]:
    (root / "train.py").write_text(SCRIPT)
    watch = (f"watchdog.after={patience.scaled(5):g}", "watchdog.action=restart", "restart.max=1")
    ranks = ("train.processes=2", "cluster.cpus=2", "amp=o0")
    return {"job": ("recipe=script", "script=train.py", *ranks, *watch)}


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
    reason = store.read_or_empty(folder / "attempts/1" / store.ENDED)["reason"]
    assert reason.startswith("it took no step any more after step ")
    assert reason.endswith(f"; restart 1 of 1; {node} is excluded from it")
    assert reason in jobs.launcher("ls", folder.name, f"run_root={folder.parent}").stdout
