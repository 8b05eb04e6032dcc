"""Where libraries find our callbacks, and that nothing is there without the launcher."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import subprocess
import sys

from amp_launcher.job import library
from amp_launcher.torch.libraries import lightning_callback
from amp_launcher.torch.libraries.attached import attached
from tests.amp_launcher.forking import environment

GROUP = "lightning.pytorch.callbacks_factory"


def test_lightning_finds_the_callback_while_a_script_runs_and_it_is_empty_without_a_launcher(monkeypatch):
    import lightning  # noqa: F401

    monkeypatch.setattr(lightning_callback.logged.receiver, "receive", None)

    before = list(sys.meta_path)
    with attached():
        (found,) = [entry for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == "amp_launcher"]
        assert found.load() is lightning_callback.lightning_callbacks
        assert found.load()() == []
    assert sys.meta_path == before
    assert not [entry for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == "amp_launcher"]


def test_a_callback_is_a_plain_one_in_a_process_that_is_spawned_but_for_a_rank(monkeypatch):
    import pickle

    import lightning

    monkeypatch.setattr(lightning_callback.logged.receiver, "receive", lambda logged: None)
    (made,) = lightning_callback.lightning_callbacks()
    assert type(made).__name__ == "JobCallback"
    assert type(pickle.loads(pickle.dumps(made))) is lightning.pytorch.Callback
    monkeypatch.setattr(library, "spawned_ranks", 2)
    pickled = pickle.dumps(made)
    library.spawned_ranks = 0
    assert type(pickle.loads(pickled)).__name__ == "JobCallback"
    assert library.spawned_ranks == 2, "so that ranks agree to stop, and take part in what is logged once in an epoch"


def test_a_script_that_imports_the_libraries_itself_has_a_callback_in_each(tmp_path):
    text = """
import sys
sys.modules["tensorflow"] = None  # which Keras would import, if it can
print([name for name in ("lightning", "transformers", "keras") if name in sys.modules])
import keras, lightning, transformers.trainer
trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
for callbacks in (trainer.callbacks, keras.callbacks.CallbackList().callbacks):
    print([type(callback).__name__ for callback in callbacks].count("JobCallback"))
print([kind.__name__ for kind in transformers.trainer.DEFAULT_CALLBACKS].count("JobCallback"))
"""
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(json.dumps({"schema": 2, "settings": {"framework": "torch"}}))
    words = ["amp=o0", "require_proof=false", "device=cpu", f"script={tmp_path}/train.py", f"run={tmp_path}/run"]
    command = [sys.executable, "-m", "amp_launcher.torch.script", *words, f"workdir={tmp_path}"]
    environ = environment(LAUNCHER_SPEC=f"{tmp_path}/run/plan.json", KERAS_BACKEND="torch")
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ended.stdout.splitlines()[1:5] == ["[]", "1", "1", "1"], ended.stdout + ended.stderr


def test_lightning_says_nothing_of_the_callback(monkeypatch):
    import lightning

    monkeypatch.setattr(lightning_callback.logged.receiver, "receive", lambda logged: None)
    said = []
    logger = logging.getLogger("lightning.fabric.utilities.registry")
    monkeypatch.setattr(logger, "handle", lambda record: said.append(record) if logger.filter(record) else None)
    with attached():
        trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert "JobCallback" in [type(callback).__name__ for callback in trainer.callbacks]
    assert [record.getMessage() for record in said] == []
