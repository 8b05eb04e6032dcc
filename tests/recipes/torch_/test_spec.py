"""`Precision.from_env()`: what a user's own script is told, and by what."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from recipes.precision.levels import Amp, LossScale
from recipes.settings import Settings
from recipes.torch_.precision import Precision
from recipes.torch_.spec import capability_of, device_from
from recipes.typed import SettingsError, plain

SCRIPT = """
import torch
from recipes.torch_.precision import Precision

precision = Precision.from_env()
model = precision.cast(torch.nn.Linear(8, 8))
optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    with precision.forward():
        loss = model(precision.input(torch.ones(4, 8))).float().square().mean()
    precision.backward(loss)
    precision.step(optimizer)
    precision.update()
print(precision.level, model.weight.dtype, optimizer.param_groups[0]["params"][0].dtype, precision.scale)
"""


def written(folder, **settings):
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": 1, "settings": settings, "run_id": "20260101-000000-a-b"}))
    return {"LAUNCHER_SPEC": str(path)}


def test_a_script_gets_what_the_launcher_was_asked_for(tmp_path):
    asked = Settings(device="cpu", amp=Amp(level="o2", dtype="float16"), loss_scale=LossScale(mode="static", init=64.0))
    environ = written(tmp_path, **plain(asked))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environ}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["o2", "torch.float16", "torch.float32", "64.0"], done.stderr


def test_what_the_plan_leaves_out_is_the_default(tmp_path):
    precision = Precision.from_env(written(tmp_path, device="cpu", amp={"level": "o1"}))
    assert (precision.level, precision.dtype, precision.device) == ("o1", torch.bfloat16, torch.device("cpu"))


def test_operation_lists_arrive(tmp_path):
    precision = Precision.from_env(written(tmp_path, device="cpu", amp={"level": "o1", "deny": ["elementwise_add"]}))
    assert precision.resolved.deny == ("add",)


def test_a_lost_environment_is_an_error_and_not_float32():
    with pytest.raises(SettingsError, match=r"LAUNCHER_SPEC is not set.*Precision\.of"):
        Precision.from_env({})


def test_a_plan_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "nowhere.json")})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SettingsError, match="JSON"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "bad.json")})
    (tmp_path / "new.json").write_text('{"schema": 2, "settings": {}}')
    with pytest.raises(SettingsError, match="schema"):
        Precision.from_env({"LAUNCHER_SPEC": str(tmp_path / "new.json")})


def test_another_frameworks_plan_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="framework=tensorflow"):
        Precision.from_env(written(tmp_path, framework="tensorflow", amp={"level": "o1"}))


@pytest.mark.parametrize("settings", [{"amp": {"levle": "o1"}}, {"amp": {"level": "o9"}}, {"tf32": "yes"}])
def test_a_plan_with_a_wrong_key_or_value_is_refused(tmp_path, settings):
    with pytest.raises(SettingsError):
        Precision.from_env(written(tmp_path, device="cpu", **settings))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_gpu_asked_for_and_absent_is_an_error_and_auto_is_the_cpu(tmp_path):
    with pytest.raises(SettingsError, match="torch sees no CUDA GPU"):
        Precision.from_env(written(tmp_path, device="cuda", amp={"level": "o1"}))
    assert Precision.from_env(written(tmp_path, amp={"level": "o1"})).device.type == "cpu"


def test_each_rank_gets_the_gpu_of_its_number(monkeypatch):
    assert device_from("cuda", {"LOCAL_RANK": "3"}) == torch.device("cuda", 3)
    assert device_from("cuda", {}) == torch.device("cuda", 0)
    assert device_from("cpu", {"LOCAL_RANK": "3"}) == torch.device("cpu")


def test_a_gpus_compute_capability_is_torchs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert capability_of(torch.device("cuda", 0)) == (8, 0)
