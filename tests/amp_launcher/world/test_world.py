"""Which process of a job this is, by the variables that say so, and whether each is where it should be."""

from __future__ import annotations

import json

import pytest

from amp_launcher.typed import SettingsError
from amp_launcher.world.world import PlacementError, RankInfo, check_placement, rank_and_size, workers


def config(*addresses: str, index: int = 0, kind: str = "worker") -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": {kind: addresses}, "task": {"type": kind, "index": index}})}


def test_a_process_is_numbered_by_what_its_framework_reads() -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "4", **config("a:1", "[::1]:2", index=1)}
    assert rank_and_size("torch", environ) == (3, 4)
    assert rank_and_size("tensorflow", environ) == (1, 2)
    assert workers(environ) == (1, ("a:1", "[::1]:2"))
    assert rank_and_size("torch", {}) == rank_and_size("tensorflow", {}) == (0, 1)
    assert workers({}) == (0, ())


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"TF_CONFIG": "{"}, "Expecting"),
        ({"TF_CONFIG": "[]"}, "HOST:PORT"),
        ({"TF_CONFIG": '{"cluster": {}}'}, "worker"),
        (config("a:1", index=1), "only workers are known here"),
        (config("a:1", kind="ps"), "worker"),
        (config("a"), "a is not HOST:PORT"),
        (config("a:99999"), "a:99999 is not HOST:PORT"),
        (config(":1"), ":1 is not HOST:PORT"),
    ],
)
def test_a_tf_config_that_names_no_workers_is_refused(environ: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why) as raised:
        workers(environ)
    assert environ["TF_CONFIG"] in str(raised.value)
    assert rank_and_size("tensorflow", environ) == (0, 1)


def rank_info(rank: int, host: str = "one", gpu: str = "", problem: str = "") -> RankInfo:
    return RankInfo(
        rank=rank, host=host, device=f"cuda:{rank}", gpu=gpu or f"GPU-{rank}", visible="0,1", problem=problem
    )


def test_ranks_on_devices_of_their_own_pass() -> None:
    check_placement([rank_info(0), rank_info(1)], 2)
    check_placement([rank_info(0, gpu="GPU-a"), rank_info(1, host="two", gpu="GPU-a")], None)


@pytest.mark.parametrize(
    ("infos", "planned", "why"),
    [
        ([rank_info(0), rank_info(1, gpu="GPU-x"), rank_info(2, gpu="GPU-x")], None, "ranks 1, 2 share GPU-x of one"),
        ([rank_info(0)], 4, "1 ranks have met, and 4 were planned"),
        ([rank_info(0), rank_info(1, problem="no cuda:1 here")], None, "rank 1: no cuda:1 here"),
    ],
)
def test_a_wrong_place_is_refused_with_a_table_of_all(infos: list[RankInfo], planned: int | None, why: str) -> None:
    with pytest.raises(PlacementError) as caught:
        check_placement(infos, planned)
    first, head, *rows = str(caught.value).splitlines()
    assert (first, head.split()) == (why, ["rank", "host", "device", "GPU", "visible", "GPUs"])
    assert [row.split()[0] for row in rows] == [str(info.rank) for info in infos]


def test_alone_without_a_gpu_the_request_is_wrong() -> None:
    with pytest.raises(SettingsError, match="device=cuda: torch sees no CUDA GPU here; say device=cpu"):
        check_placement([rank_info(0, problem="torch sees no CUDA GPU here")], None)
