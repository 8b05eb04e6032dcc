"""`Precision.from_env()`: what a user's own script is told, and by what."""

from __future__ import annotations

import json

import pytest
import torch

from amp_launcher.torch.precision import Precision
from amp_launcher.torch.spec import capability_of, device_from
from amp_launcher.typed import SettingsError


def written(folder, **settings):
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": 2, "settings": settings, "run_id": "20260101-000000-a-b"}))
    return {"LAUNCHER_SPEC": str(path)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_what_the_plan_leaves_out_is_the_default(tmp_path):
    precision = Precision.from_env(written(tmp_path, amp={"level": "o1"}))
    assert (precision.level, precision.dtype, precision.device) == ("o1", torch.bfloat16, torch.device("cpu"))


def test_operation_lists_arrive(tmp_path):
    precision = Precision.from_env(written(tmp_path, device="cpu", amp={"level": "o1", "deny": ["elementwise_add"]}))
    assert precision.resolved.deny == ("add",)


def test_a_plan_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "nowhere.json")})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SettingsError, match="JSON"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "bad.json")})
    (tmp_path / "new.json").write_text('{"schema": 9, "settings": {}}')
    with pytest.raises(SettingsError, match="schema"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "new.json")})


@pytest.mark.parametrize("settings", [{"amp": {"levle": "o1"}}, {"amp": {"level": "o9"}}, {"tf32": "yes"}])
def test_a_plan_with_a_wrong_key_or_value_is_refused(tmp_path, settings):
    with pytest.raises(SettingsError):
        Precision.from_env(written(tmp_path, device="cpu", **settings))


def test_each_rank_gets_the_gpu_of_its_number(monkeypatch):
    assert device_from("cuda", {"LOCAL_RANK": "3"}) == torch.device("cuda", 3)
    assert device_from("cuda", {}) == torch.device("cuda", 0)
    assert device_from("cpu", {"LOCAL_RANK": "3"}) == torch.device("cpu")


def test_a_gpus_compute_capability_is_torchs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert capability_of(torch.device("cuda", 0)) == (8, 0)
