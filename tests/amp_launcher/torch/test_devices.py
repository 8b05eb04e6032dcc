"""Where ranks are, and what they are told when that is wrong."""

from __future__ import annotations

import subprocess

import pytest
import torch

from amp_launcher.torch import devices
from amp_launcher.torch.devices import World
from amp_launcher.typed import SettingsError
from amp_launcher.world import cgroup_limits
from tests.amp_launcher.torch.loops import CPU
from tests.amp_launcher.torch.trainers import run

JOIN = """
import os, sys
from amp_launcher.torch import devices
from amp_launcher.world.world import PlacementError
try:
    world = devices.join(sys.argv[1], int(sys.argv[2]) or None, os.environ)
except PlacementError as error:
    print(error, flush=True)
    os._exit(7)
values = [world.gather(world.rank), world.sum([1, world.rank]), world.broadcast(world.rank)]
os.write(1, (" ".join(map(str, [world.rank, *values])) + chr(10)).encode())  # at once: the ranks share one pipe
world.leave()
os._exit(0)
"""


def join(folder, device: str, planned: int, ranks: int) -> subprocess.CompletedProcess[str]:
    (folder / "join.py").write_text(JOIN)
    return run([device, str(planned)], ranks, [str(folder / "join.py")])


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    world = devices.join("auto", None, {})
    assert (world.device.type, world.rank, world.size) == ("cpu", 0, 1)


def test_ranks_that_met_talk_to_each_other(tmp_path):
    ended = join(tmp_path, "cpu", 2, ranks=2)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["0 [0, 1] [2.0, 1.0] 0", "1 [0, 1] [2.0, 1.0] 0"]


def test_every_rank_says_why_when_one_is_missing(tmp_path):
    ended = join(tmp_path, "cpu", 3, ranks=2)
    assert ended.returncode != 0
    assert "2 ranks have met, and 3 were planned" in ended.stdout


def test_rank_zeros_wrong_data_is_every_ranks():
    alone = World(rank=0, size=1, device=CPU)

    def fail() -> None:
        raise SettingsError("no such file", "data.dir")

    assert alone.rank_zero_first(lambda: 3) == 3
    with pytest.raises(SettingsError, match="no such file") as caught:
        alone.rank_zero_first(fail)
    assert caught.value.key == "data.dir"


def test_ranks_draw_different_random_numbers_and_go_on_with_those_where_they_were_saved():
    drawn = []
    for rank in (0, 1):
        devices.seed_rank(5, rank)
        saved = devices.random_state(CPU)
        drawn.append(torch.rand(4).tolist())
        devices.set_random_state(saved, CPU)
        assert torch.rand(4).tolist() == drawn[-1]
    assert drawn[0] != drawn[1]


def test_a_quota_on_cpus_is_what_torch_has_threads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(
        cgroup_limits, "threads", lambda variable: before + 3 if variable == "OMP_NUM_THREADS" else None
    )
    try:
        devices.join("cpu", None, {})
        assert torch.get_num_threads() == before + 3
    finally:
        torch.set_num_threads(before)
