import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launcher.__main__ import main
from launcher.runs import store
from recipes.torch_ import state
from recipes.trainer import checkpoint

from .. import run_folders
from ..run_folders import NAME, finished


def save(folder, step):
    saved = {"model": {"weight": torch.full((2,), step / 3).bfloat16()}, "precision": {"masters": {}}}
    facts = {"settings": {"framework": "torch"}}
    checkpoint.save(folder / "checkpoints", step, state.FILE, lambda file: state.write(file, saved), facts, keep=9)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_newest_checkpoint_or_that_of_a_step_becomes_a_file_here(root, tmp_path, capfd):
    folder = finished(root)
    save(folder, 3)
    save(folder, 6)
    assert main(["export", "brave"]) == 0
    assert "step 6 of " in capfd.readouterr().out
    assert torch.equal(load_file(f"{NAME}.safetensors")["weight"], torch.full((2,), 2.0))
    assert main(["export", "brave", "step=3", "other.safetensors"]) == 0
    assert load_file("other.safetensors")["weight"].dtype == torch.float32
    before = (tmp_path / "other.safetensors").read_bytes()
    capfd.readouterr()
    assert main(["export", "brave", "other.safetensors"]) == 2
    assert "is there already; name another file, or say overwrite=true" in capfd.readouterr().err
    assert (tmp_path / "other.safetensors").read_bytes() == before
    assert main(["export", "brave", "other.safetensors", "overwrite=true"]) == 0
    assert (tmp_path / "other.safetensors").read_bytes() != before
    assert sorted(each.name for each in tmp_path.glob("*.safetensors*")) == [f"{NAME}.safetensors", "other.safetensors"]


@pytest.mark.parametrize(
    ("words", "plan", "said"),
    [
        (["export"], {}, "export takes one run and one file"),
        (["export", "brave", "a", "b"], {}, "export takes one run and one file"),
        (
            ["export", "brave", "steps=3"],
            {},
            "steps=3; did you mean step? (known here: step, python, overwrite, run_root)",
        ),
        (["export", "brave", "python="], {}, "python= names no Python"),
        (["export", "brave"], {}, "has no checkpoint yet"),
        (["export", "brave"], {"script": {"path": "train.py"}}, "is a script of your own"),
        (["export", "brave"], {"framework": "tensorflow"}, "framework=tensorflow, and export is for torch"),
        (["export", "brave"], {"arms": [{"name": "o1"}]}, "is a comparison"),
        (["export", "brave", "python=/no/python"], {}, "/no/python can't be started"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_words(root, capfd, words, plan, said):
    folder = finished(root)
    store.write_json(folder / "plan.json", {"schema": 1, "name": "mnist-o2", **plan})
    assert main(words) == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_python_without_torch_or_safetensors_is_told_what_to_install(root, tmp_path, capfd):
    save(finished(root), 3)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    assert main(["export", "brave", f"python={python}"]) == 2
    assert "pip install 'amp-launcher[torch]'" in capfd.readouterr().err
    (packages,) = (tmp_path / "bare" / "lib").glob("*/site-packages")
    hide = "import sys; sys.modules['safetensors'] = None; sys.path += " + repr([p for p in sys.path if "site-" in p])
    (packages / "hide.pth").write_text(hide)
    assert main(["export", "brave", f"python={python}"]) == 2
    assert f"{python} has no safetensors: pip install 'amp-launcher[export]'" in capfd.readouterr().err


def begun(root, tmp_path):
    """An export in a session of its own, as in a terminal, and the process that reads the checkpoint."""
    save(finished(root), 3)
    python, began = tmp_path / "python", tmp_path / "began"
    note = f"echo $$ >{shlex.quote(f'{began}.new')} && mv {shlex.quote(f'{began}.new')} {shlex.quote(str(began))}"
    python.write_text(f'#!/bin/sh\n{note}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, "-m", "launcher", "export", "brave", "a.safetensors", f"python={python}"]
    exporting = subprocess.Popen(
        [*command, f"run_root={root}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # of tests under nohup too
    )
    run_folders.until(began.exists, 60)
    return exporting, int(began.read_text())


def test_ctrl_c_ends_it_without_a_traceback_or_a_file(root, tmp_path):
    exporting, _ = begun(root, tmp_path)
    os.killpg(exporting.pid, signal.SIGINT)
    assert (exporting.communicate(timeout=60)[1], exporting.returncode) == ("interrupted\n", 130)
    assert sorted(each.name for each in tmp_path.iterdir() if "safetensors" in each.name) == []


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_closes_or_a_timeout_ends_it_whole(root, tmp_path, sent):
    exporting, reader = begun(root, tmp_path)
    os.killpg(exporting.pid, sent)
    exporting.communicate(timeout=60)
    run_folders.until(lambda: not runs(reader), 60)
    assert sorted(each.name for each in tmp_path.iterdir() if "safetensors" in each.name) == []


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
