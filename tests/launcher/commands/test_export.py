import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from amp_launcher.loop import checkpoint
from amp_launcher.torch import state
from launcher.__main__ import main
from launcher.runs import store

from .. import run_folders
from ..run_folders import NAME, finished, launcher


def save(folder, step):
    saved = {"model": {"weight": torch.full((2,), step / 3).bfloat16()}, "optimizers": [], "precision": {}, "tied": {}}
    facts = {"settings": {"framework": "torch"}}
    checkpoint.save(folder / "checkpoints", step, state.FILE, lambda file: state.write(file, saved), facts, keep=9)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def export(root, tmp_path):
    """The command: the process becomes that of the export."""
    return lambda *words: launcher("export", *words, f"run_root={root}", state_home=tmp_path / "state")


def test_the_newest_checkpoint_or_that_of_a_step_becomes_a_file_here(root, tmp_path, export):
    folder = finished(root)
    save(folder, 3)
    save(folder, 6)
    for name in ("torch", "safetensors"):  # of the folder where it is typed
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')\n")
    newest = export("brave")
    assert newest.returncode == 0 and "step 6 of " in newest.stdout, newest.stderr
    assert torch.equal(load_file(f"{NAME}.safetensors")["weight"], torch.full((2,), 2.0))
    (tmp_path / "other.safetensors").touch()
    assert export("brave", "step=3", "other.safetensors", "overwrite=true").returncode == 0
    assert torch.equal(load_file("other.safetensors")["weight"], torch.full((2,), 1.0))
    assert sorted(path.name for path in tmp_path.glob("*.safetensors*")) == [f"{NAME}.safetensors", "other.safetensors"]


@pytest.mark.parametrize(
    ("words", "plan", "message"),
    [
        ([], {}, "export takes one run and one file"),
        (["brave", "a", "b"], {}, "export takes one run and one file"),
        (["brave", "steps=3"], {}, "steps=3; did you mean step? (known here: step, python, overwrite, run_root)"),
        (["brave", "python="], {}, "python= names no Python"),
        (["brave"], {"script": {"path": "train.py"}}, "is a script of your own"),
        (["brave"], {"framework": "tensorflow"}, "framework=tensorflow, and export is for torch"),
        (["brave"], {"arms": [{"name": "o1"}]}, "is a comparison"),
        (["brave", "python=/no/python"], {}, "/no/python can't be started"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_words(root, capsys, words, plan, message):
    folder = finished(root)
    store.write_json(folder / "plan.json", {"schema": 2, "name": "mnist-o2", **plan})
    assert main(["export", *words, f"run_root={root}"]) == 2
    assert message in capsys.readouterr().err


def test_a_python_without_torch_or_safetensors_is_refused_with_what_to_install(root, tmp_path, export):
    save(finished(root), 3)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    assert "bin/python -m pip install torch" in export("brave", f"python={python}").stderr
    (packages,) = (tmp_path / "bare" / "lib").glob("*/site-packages")
    hide = "import sys; sys.modules['safetensors'] = None; sys.path += " + repr([p for p in sys.path if "site-" in p])
    (packages / "hide.pth").write_text(hide)
    done = export("brave", f"python={python}")
    assert done.returncode == 2
    assert f"{python} has no safetensors: pip install 'amp-launcher[export]'" in done.stderr


def begun(root):
    """An export in a session of its own, as in a terminal, once it is the process of the Python that has torch."""
    save(finished(root), 3)
    exporting = subprocess.Popen(
        [sys.executable, "-m", "launcher", "export", "brave", "a.safetensors", f"run_root={root}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # of tests under nohup too
    )
    run_folders.until(lambda: b"runpy" in Path(f"/proc/{exporting.pid}/cmdline").read_bytes(), 60)
    return exporting


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_the_process_ends_it_without_a_traceback_or_a_file(root, tmp_path, sent):
    exporting = begun(root)
    exporting.send_signal(sent)
    assert exporting.communicate()[1] == ""
    assert exporting.returncode in (-sent, 130), "130 once the export handles signals"
    assert not list(tmp_path.glob("*safetensors*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(exporting.pid, 0)
