"""What callbacks of training libraries ask of their job."""

from __future__ import annotations

import signal

import pytest

from amp_launcher.job import library


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
