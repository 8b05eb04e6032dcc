"""Preemption by the real Slurm, with a minute of grace: a user's script saves when `should_stop` says so, and continues
bit for bit; the cause is on the screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.probe.slurm_commands import call
from launcher.runs import store
from tests.launcher import warm
from tests.launcher.slurm.bench import until
from tests.launcher.slurm.submitted import Submitted, submitted_by
from tests.launcher.slurm.trainers import LATER, LONG

SCRIPT = """\
import os, time, torch
from torch import distributed, nn
from amp_launcher import job
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(0)
net = nn.Linear(8, 8)
net = nn.parallel.DistributedDataParallel(net) if "RANK" in os.environ else net
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
path, step = job.checkpoint_dir() / f"rank{rank}.pt", 0
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"]), optimizer.load_state_dict(saved["optimizer"]), torch.set_rng_state(saved["rng"])
    step = saved["step"]
print("rank", rank, "begun at", step, flush=True)
while step < 900:
    optimizer.zero_grad()
    (net(torch.randn(4, 8)) ** 2).mean().backward()
    optimizer.step()
    step += 1
    time.sleep(float(os.environ.get("PACE", "0")))
    stop = job.should_stop()
    if step == 1:
        print("trains", flush=True)
    if stop:
        rng = torch.get_rng_state()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng, "step": step}, path)
        print("rank", rank, "saved at", step, flush=True)
        break
else:
    print("end", rank, [weight.double().sum().item().hex() for weight in net.parameters()], flush=True)
"""
RANKS = {"ranks": 2, "alone": 1}
"""Ranks, a node each, of the runs that are preempted. Neither can be done before both train."""
PREEMPTED = ("cluster.partition=patient", "cluster.mem=20G", "env.PACE=1", f"cluster.setup=['{LATER}']")


def requests(root: Path) -> dict[str, tuple[str, ...]]:
    (root / "train.py").write_text(SCRIPT)
    words = ("recipe=script", "script=train.py", f"python={warm.python()}", "amp=o0")
    tell = f"notify=/bin/sh -c 'cat >>{root}/told-$(basename $1)' tell"
    return {
        **{name: (*words, f"nodes={nodes}", *PREEMPTED, f"{tell} {name}") for name, nodes in RANKS.items()},
        **{f"whole-{name}": (*words, f"nodes={nodes}") for name, nodes in RANKS.items()},
    }


submitted = submitted_by(requests)


@pytest.fixture(scope="module")
def preemptor(submitted: Submitted) -> str:
    """The job that takes the place of both runs, once these train."""
    for name, ranks in RANKS.items():
        log = submitted.folder(name) / "attempts/1/stdout.log"
        until(lambda log=log, ranks=ranks: log.exists() and log.read_text().count("trains") == ranks, LONG)
    wants = ["--parsable", "--partition=priority", "--nodes=2", "--mem=50G", "--output=/dev/null"]
    return call(["sbatch", *wants, "--wrap=sleep 1"]).stdout.strip()


@pytest.mark.parametrize("name", RANKS)
def test_a_preempted_script_saves_in_its_grace_time_and_continues_bit_for_bit(
    submitted: Submitted, preemptor: str, name: str
) -> None:
    result = submitted.done(name)
    assert (result["attempts"], result["world_size"], result["observed"]["verdict"]) == (2, RANKS[name], "proved")
    first, second = submitted.output(name).splitlines(), submitted.output(name, 2).splitlines()
    saved = {line.rpartition(" ")[2] for line in first if "saved at" in line}
    assert saved == {line.rpartition(" ")[2] for line in second if "begun at" in line}
    assert len(saved) == 1, "all ranks at the same step"

    submitted.done(f"whole-{name}")
    ends = [
        sorted(line for line in text if line.startswith("end"))
        for text in (second, submitted.output(f"whole-{name}").splitlines())
    ]
    assert len(ends[0]) == RANKS[name]
    assert ends[0] == ends[1]

    folder = submitted.folder(name)
    ended = store.read_or_empty(folder / "attempts/1" / store.ENDED)
    # The preempting job is named only where no other one is planned on those nodes; other tests' jobs may wait there.
    by = rf"( by job {preemptor} \(root, partition priority\))?"
    assert ended["state"] == "requeued"
    assert re.fullmatch(f"preempted{by}; checkpoint in LAUNCHER_CHECKPOINT_DIR", ended["reason"])
    assert store.read_or_empty(folder / "attempts/1/stopped.json")["why"] in ("preemption", "signal TERM")
    assert f"requeued: {ended['reason']}" in submitted.launcher("ls", folder.name, f"run_root={folder.parent}").stdout

    notices = (submitted.root / f"told-{name}").read_text()
    assert [notices.count(f'"event": "{event}"') for event in ("preempted", "ended", "hung")] == [1, 1, 0]
    assert f'"text": "{folder.name} is preempted' in notices and f'"text": "{folder.name} done"' in notices
