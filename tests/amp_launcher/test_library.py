"""What callbacks of training libraries ask of their job."""

from __future__ import annotations

import signal

import pytest

from amp_launcher.job import library
from amp_launcher.job.logged import Logged, receiver


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["loss", "accuracy", "lr"], {}),
        (["val_head1_loss", "val_loss", "val_head2_acc"], {"loss": "val_loss", "accuracy": "val_head2_acc"}),
        (["eval_loss", "eval_accuracy", "eval_runtime"], {"loss": "eval_loss", "accuracy": "eval_accuracy"}),
        (["validation/acc", "value_loss"], {"accuracy": "validation/acc"}),
    ],
)
def test_measures_on_held_out_samples_are_known_by_their_names(names, expected):
    assert library.held_out_names(names) == expected


def test_a_handler_of_the_scripts_own_is_known():
    before = signal.getsignal(signal.SIGTERM)
    assert not library.script_handles_stop()
    signal.signal(signal.SIGTERM, lambda *given: None)
    try:
        assert library.script_handles_stop()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_asking_whether_to_stop_leaves_term_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.setenv("LAUNCHER_SPEC", str(tmp_path / "plan.json"))
    before = signal.getsignal(signal.SIGTERM)
    assert not library.should_stop()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("metrics", "loss", "expected"),
    [
        ({"train_loss": 1.0, "train_loss_step": 2.0, "loss": 3.0}, 4.0, {"loss": 2.0}),
        (
            {"lr": 0.1, "epoch": 2, "noise": "much", "on": True},
            4.0,
            {"loss": 4.0, "more": {"lr": 0.1, "train_epoch": 2.0}},
        ),
        ({"val_loss": 1.0, "val_acc": 0.5}, None, {"held_out": {"loss": 1.0, "accuracy": 0.5}}),
        ({"learning_rate": 0.1}, "none", {"more": {"lr": 0.1}}),
    ],
)
def test_what_a_library_logs_has_the_launchers_names(monkeypatch, metrics, loss, expected):
    received = []
    monkeypatch.setattr(receiver, "receive", received.append)
    library.log(3, metrics, loss)
    assert received == [Logged(step=3, by_library=True, **expected)]
