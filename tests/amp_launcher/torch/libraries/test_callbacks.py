"""The callbacks of Lightning and of Trainer in scripts that know nothing of them, and accelerate's tracker."""

from __future__ import annotations

import json
from inspect import signature

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.amp_launcher.forking import Forked, run_as_main
from tests.amp_launcher.torch.scripts import fork
from tests.amp_launcher.torch.test_library_rows import LIGHTNING, TRAINER

SAVES = (  # the first isn't in 2.4
    'ModelCheckpoint(dirpath="saved", save_on_exception=True, save_last=True)',
    'OnExceptionCheckpoint("saved", "epoch=0-step=4")',
)
if "save_on_exception" not in signature(ModelCheckpoint).parameters:
    SAVES = SAVES[1:]
STOPS = """
import os, pathlib, time
at = int(os.environ.get("STOP_AT", 0))
def ask(step):
    if step == at:
        (pathlib.Path(os.environ["LAUNCHER_SPEC"]).parent / "STOP").touch()
        time.sleep(1.1)  # it is looked for once a second
"""
LIGHTNING_STOPS = (
    STOPS
    + """
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
saves = SAVES
""".replace("SAVES", SAVES[0])
    + LIGHTNING.replace("        return loss", "        ask(self.global_step)\n        return loss").replace(
        "logger=CSVLogger", "min_epochs=9, callbacks=[saves], logger=CSVLogger"
    )
    + "\nprint('fitted', trainer.global_step, trainer.limit_val_batches, saves in trainer.callbacks, flush=True)\n"
)
TRAINER_STOPS = (
    STOPS
    + TRAINER.replace(
        "trainer = Trainer(",
        """from transformers import TrainerCallback
class Asks(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        ask(state.global_step)
words.update(use_cpu=True)
trainer = Trainer(callbacks=[Asks()], model=""",
    ).replace("model=Net(), TrainingArguments(**words)", "model=Net(), args=TrainingArguments(**words)")
    + ("print('fitted', trainer.state.global_step, flush=True)\n")
)


@pytest.fixture
def run(tmp_path):
    def start(text, *passed, ranks=1, **environ):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "plan.json").write_text(json.dumps({"schema": 2, "settings": {"framework": "torch"}}))
        environ = {"LAUNCHER_SPEC": str(tmp_path / "run" / "plan.json"), **environ}
        ended = fork(tmp_path, text, "amp=o0", "require_proof=false", passed=passed, ranks=ranks, **environ)
        assert ended.code == 0, ended.out + ended.err
        return ended

    return start


WHOLE_EPOCHS = 'ModelCheckpoint(dirpath="saved", save_on_train_epoch_end=True, save_last=True)'


@pytest.mark.parametrize("saves", [*SAVES, WHOLE_EPOCHS])
def test_a_lightning_training_that_is_asked_to_stop_saves_and_ends_at_that_batch(run, tmp_path, saves):
    ended = run(LIGHTNING_STOPS.replace(SAVES[0], saves), "12", STOP_AT="3")
    assert f"fitted 4 1.0 {'OnException' not in saves}" in ended.out
    assert (ended.result["status"], len(ended.steps)) == ("stopped", 4)
    saved = sorted(file.name for file in tmp_path.glob("saved/*"))
    assert saved[:1] == ([] if saves == WHOLE_EPOCHS else ["epoch=0-step=4.ckpt"])  # no epoch that was cut short
    assert [row for row in ended.rows if row.get("event") == "eval"] == []


def test_a_trainer_that_is_asked_to_stop_saves_and_ends_after_that_step(run, tmp_path):
    ended = run(TRAINER_STOPS, "out", "10", STOP_AT="2")
    assert "fitted 3" in ended.out
    assert (ended.result["status"], len(ended.steps)) == ("stopped", 3)
    assert (tmp_path / "out" / "checkpoint-3" / "trainer_state.json").exists()


@pytest.mark.parametrize(("text", "passed"), [(LIGHTNING_STOPS, ["2"]), (TRAINER_STOPS, ["out", "6"])])
def test_a_script_with_a_handler_of_its_own_is_stopped_by_that_alone(run, text, passed):
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *given: print('mine'))\n"
    text = text.replace("min_epochs=9, ", "")
    ended = run(handler + text, *passed, STOP_AT="1")
    assert f"fitted {16 if passed == ['2'] else 6}" in ended.out


def test_all_ranks_of_a_lightning_training_stop_at_the_same_batch(run):
    text = LIGHTNING_STOPS.replace('accelerator="cpu"', 'accelerator="cpu", devices=2, strategy="ddp"')
    ended = run(text.replace("'fitted',", "'fitted', os.environ['RANK'],"), "12", ranks=2, STOP_AT="1")
    steps = {line.split()[2] for line in ended.out.splitlines() if line.startswith("fitted")}
    assert (ended.result["status"], len(steps), ended.out.count("fitted")) == ("stopped", 1, 2)


def test_ranks_that_lightning_starts_itself_train_to_their_end_beside_one_with_the_callback(run):
    text = LIGHTNING_STOPS.replace('accelerator="cpu"', 'accelerator="cpu", devices=2, strategy="ddp"')
    text = text.replace("loss)\n        ask", "loss, on_epoch=True, sync_dist=True)\n        ask").replace(
        "min_epochs=9, ", ""
    )
    text = text.replace("(self.net(batch) ** 2).mean())", "(self.net(batch) ** 2).mean(), sync_dist=True)")
    ended = run(text, "2", STOP_AT="1")
    assert ended.out.count("fitted 8") == 2
    assert [row["step"] for row in ended.steps if row["loss"] is not None] == [2, 4, 6, 8]
    assert ended.result["eval"]["accuracy"] == 0.5


def keys_with_and_without_the_launcher(run, folder, text, *passed):
    """Those of the checkpoints that a script saves, which are to be the same. How it ended under the launcher."""
    shown = """
import glob
for file in sorted(glob.glob("**/*.ckpt", recursive=True) + glob.glob("out/checkpoint-4/trainer_state.json")):
    import json
    kept = torch.load(file, weights_only=False) if file.endswith("ckpt") else json.load(open(file))
    print("KEYS", file, sorted(kept), sorted(kept.get("callbacks", kept.get("stateful_callbacks"))))
"""
    ended = run(text + shown, *passed)
    keys = [line for line in ended.out.splitlines() if line.startswith("KEYS")]
    alone = folder / "alone"
    alone.mkdir()
    (alone / "train.py").write_text(text + shown)
    plain = Forked(run_as_main, (("train.py",), passed), cwd=alone).complete()
    assert keys == [line for line in plain.stdout.splitlines() if line.startswith("KEYS")] != []
    assert "JobCallback" not in plain.stdout + plain.stderr
    return ended


def test_checkpoints_of_trainer_have_the_keys_that_they_have_without_the_launcher(run, tmp_path):
    keys_with_and_without_the_launcher(run, tmp_path, TRAINER, "out", "4")


def test_what_a_lightning_module_logs_becomes_curves_its_loss_needs_no_log_and_checkpoints_keep_their_keys(
    run, tmp_path
):
    text = LIGHTNING.replace('self.log("train/loss", loss)', 'self.log("norm", 7.0)')
    ended = keys_with_and_without_the_launcher(run, tmp_path, text, "1")
    logged = [row for row in ended.steps if row["loss"] is not None]
    assert [row["step"] for row in logged] == [2, 4, 6, 8]
    assert logged[0]["logged"] == {"norm": 7.0}
    assert ended.result["eval"]["accuracy"] == 0.5


def test_a_script_that_logs_by_itself_is_left_to_that(run):
    text = LIGHTNING.replace(
        '        self.log("train/loss", loss)\n',
        '        self.log("train/loss", loss)\n'
        "        from amp_launcher import job\n        job.log(self.global_step + 1, loss=9.0)\n",
    )
    assert {row["loss"] for row in run(text, "1").steps} == {9.0}


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from amp_launcher.torch.libraries.accelerate_tracker import JobTracker

accelerator = Accelerator(log_with=JobTracker(), cpu=True)
accelerator.init_trackers("training", config={"lr": 0.01})
net = nn.Linear(32, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
for step in range(1, 7):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 32)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    if step % 2 == 0:
        accelerator.log({"train_loss": loss.item(), "learning_rate": 0.01, "noise": step}, step=step)
    accelerator.log({"val_accuracy": 0.5, "run": "a"}, step=step) if step == 6 else accelerator.log({"x": 1.0})
accelerator.end_training()
"""


def test_what_is_logged_by_accelerate_is_in_the_rows_of_its_steps(run):
    ended = run(ACCELERATE)
    assert [row["step"] for row in ended.steps if row["loss"] is not None] == [2, 4, 6]
    assert next((row["lr"], row["logged"]) for row in ended.steps if row["lr"]) == (0.01, {"noise": 2.0})
    assert ended.result["eval"]["accuracy"] == 0.5
