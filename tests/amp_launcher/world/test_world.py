"""Which process of a job this is, by the variables that say so."""

from __future__ import annotations

import json

import pytest

from amp_launcher.typed import SettingsError
from amp_launcher.world.world import rank_and_size, workers


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
