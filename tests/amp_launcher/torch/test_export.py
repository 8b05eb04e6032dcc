"""`amp_launcher.torch.export`: a safetensors file that a plain model loads."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from amp_launcher.loop import checkpoint
from amp_launcher.recipes import gpt
from amp_launcher.recipes.data import tokens
from amp_launcher.recipes.gpt.train_torch import Net, train
from amp_launcher.settings import Data
from amp_launcher.torch import export, loop
from amp_launcher.torch.state import FILE, write
from amp_launcher.torch.trained import masters_of
from tests.amp_launcher.torch.loops import of
from tests.amp_launcher.torch.trainers import last_state, result

SMALL = ["batch=4", "steps=2", "train.layers=2", "train.width=32", "train.context=32", "train.held_out=4"]
HYPER = gpt.GptSettings(layers=2, width=32, context=32, held_out=4)


def exported(run: Path, *words: str) -> tuple[int, Path]:
    file = run / "weights.safetensors"
    return export.main([f"run={run}", f"file={file}", *words]), file


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
def test_a_plain_model_with_the_exported_weights_measures_what_the_run_did(tmp_path, level):
    assert loop.main("gpt", train, [f"amp={level}", "recipe=gpt", *SMALL, f"run={tmp_path}"]) == loop.DONE
    code, file = exported(tmp_path)
    assert code == 0
    weights = load_file(file)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    net = Net(HYPER)
    net.load_state_dict(weights)
    saved = last_state(tmp_path)
    for name, parameter in net.named_parameters():
        own = masters_of(saved).get(name, saved["model"][name])
        assert torch.equal(parameter, own.float()), name
    assert torch.equal(weights["head.weight"], weights["embedding.weight"])
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "run": tmp_path.name, "step": "2"}
    assert measured(net, level) == pytest.approx(result(tmp_path)["eval"]["loss"], abs=1e-6)


@torch.no_grad()
def measured(net: Net, level: str) -> float:
    text = tokens.load(Data(name="stdlib"), HYPER)
    precision = of(level)
    net = precision.prepare(net).eval()
    indices = torch.arange(HYPER.held_out).numpy() * len(text.held_out) // HYPER.held_out
    samples = torch.from_numpy(text.held_out.samples(indices))
    with precision:
        logits = net(samples[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten()).item()
    assert math.isfinite(loss)
    return loss


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path, capsys):
    save_weight(tmp_path, 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        code, _ = exported(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1
    assert "File too large" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(weights, file, metadata):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    save_weight(tmp_path)
    monkeypatch.setattr("safetensors.torch.save_file", interrupted)
    assert exported(tmp_path)[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_file_that_came_to_be_meanwhile_is_not_replaced(tmp_path, monkeypatch, capsys):
    save_weight(tmp_path)
    (tmp_path / "weights.safetensors").write_text("another's")
    monkeypatch.setattr(export, "_check", lambda *_: None)
    assert exported(tmp_path)[0] == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "weights.safetensors").read_text() == "another's"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "weights.safetensors"}
    assert exported(tmp_path, "overwrite=true")[0] == 0


def save_weight(run: Path, size: int = 2, step: int = 1, framework: str = "torch") -> Path:
    saved = {"model": {"weight": torch.ones(size)}, "tied": {}, "optimizers": [], "precision": {}}
    facts = {"settings": {"framework": framework}}
    return checkpoint.save(run / "checkpoints", step, FILE, lambda file: write(file, saved), facts, keep=9)


def test_what_cannot_be_exported_is_refused_in_words(tmp_path, capsys):
    def refused(*words: str) -> str:
        assert exported(tmp_path, *words)[0] == 2
        return capsys.readouterr().err

    assert "has no checkpoint yet" in refused()
    save_weight(tmp_path, step=3)
    save_weight(tmp_path, step=6)
    assert "has no checkpoint of step 4; it has those of 3, 6" in refused("step=4")
    assert "step=x" in refused("step=x")
    assert "there is no folder /no/folder" in refused("file=/no/folder/file")
    assert "is a folder; name a file in it" in refused(f"file={tmp_path}")
    assert "export takes run=, file=, step=, overwrite=, not steps=3" in refused("steps=3")
    manifest = tmp_path / "checkpoints" / "step-000000006" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema": 3', '"schema": 2'))
    assert "is of schema 2, and this version reads 3; `python -m launcher resume` continues with" in refused("step=6")
    (save_weight(tmp_path, step=9) / FILE).unlink()
    assert f"step-000000009/{FILE}" in refused("step=9")
    save_weight(tmp_path, step=12, framework="paddle")
    assert "is framework=paddle, and export is for torch" in refused()
    assert not (tmp_path / "weights.safetensors").exists()
