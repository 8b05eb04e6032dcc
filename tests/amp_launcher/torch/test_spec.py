"""`Precision()`: which mode a script gets, with and without the launcher."""

from __future__ import annotations

import json

import pytest
import torch

from amp_launcher.torch import Precision
from amp_launcher.torch.spec import capability_of, device_from
from amp_launcher.typed import SettingsError


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Writes the plan that the launcher tells a script of."""

    def write(text=None, **settings):
        path = tmp_path / "plan.json"
        path.write_text(text or json.dumps({"schema": 2, "settings": settings, "run_id": "20260101-000000-a-b"}))
        monkeypatch.setenv("LAUNCHER_SPEC", str(path))

    return write


@pytest.mark.parametrize(
    ("mode", "level", "dtype", "gemm"),
    [
        ("o0", "o0", torch.float32, "half"),
        ("o2", "o2", torch.bfloat16, "half"),
        ("bf16-mixed", "o1", torch.bfloat16, "half"),
        ("fp16-mixed", "o1", torch.float16, "half"),
        ("bf16-true", "o3", torch.bfloat16, "half"),
        ("fp8", "o2", torch.bfloat16, "fp8-tensorwise"),
    ],
)
def test_a_level_or_a_modes_name_says_all(mode, level, dtype, gemm, capsys):
    precision = Precision(mode, device="cpu")
    assert (precision.level, precision.dtype, precision.resolved.gemm) == (level, dtype, gemm)
    assert capsys.readouterr().err == ""


def test_without_a_mode_and_a_launcher_it_says_which_mode_it_took(capsys):
    assert Precision(device="cpu").level == "o1"
    said = 'amp-launcher: Precision() outside of the launcher is o1 (bfloat16) on cpu; Precision("o2") names a mode\n'
    assert capsys.readouterr().err == said


def test_the_launchers_request_wins(asked, capsys):
    asked(device="cpu", amp={"level": "o1", "dtype": "float16", "deny": ["elementwise_add"]})
    for precision in (Precision("o3", loss_scale="none"), Precision()):
        assert (precision.level, precision.dtype, precision.resolved.deny) == ("o1", torch.float16, ("add",))
        assert precision.scale == 2.0**16
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"mode": "bf16"},
            "precision=bf16 is not one of o0, o1, o2, o3, fp32, .*nvfp4; did you mean",
        ),
        ({"mode": torch.bfloat16}, r"precision=torch\.bfloat16 is not one of o0"),
        ({"mode": "o1", "loss_scale": "dynamc"}, "loss_scale=dynamc is not one of .*; did you mean dynamic"),
        ({"mode": "fp32", "tf32": True}, "tf32=True with fp32"),
        ({"mode": "o1", "device": "meta"}, "device=meta is not one of cpu, cuda"),
    ],
)
def test_an_unknown_name_is_refused_with_the_choices(arguments, problem):
    with pytest.raises(SettingsError, match=problem):
        Precision(**{"device": "cpu", **arguments})


def test_a_plan_that_cannot_be_read_is_refused(asked, monkeypatch):
    for text, problem in (("{", "JSON"), ('{"schema": 9, "settings": {}}', "schema")):
        asked(text)
        with pytest.raises(SettingsError, match=problem):
            Precision()
    for settings in ({"amp": {"levle": "o1"}}, {"amp": {"level": "o9"}}, {"tf32": "yes"}):
        asked(device="cpu", **settings)
        with pytest.raises(SettingsError):
            Precision()
    monkeypatch.setenv("LAUNCHER_SPEC", "/nowhere.json")
    with pytest.raises(SettingsError, match="nowhere"):
        Precision()


def test_each_rank_gets_the_gpu_of_its_number(monkeypatch):
    assert device_from("cuda", {"LOCAL_RANK": "3"}) == torch.device("cuda", 3)
    assert device_from("cuda", {}) == torch.device("cuda", 0)
    assert device_from("cpu", {"LOCAL_RANK": "3"}) == torch.device("cpu")


def test_a_gpus_compute_capability_is_torchs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert capability_of(torch.device("cuda", 0)) == (8, 0)
