"""A callback that gives the launcher what transformers' Trainer logs, and ends a training that was asked to stop.

Under the launcher each `Trainer` has it, among its default callbacks: nothing is to be added to a script.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from amp_launcher.job import library


class JobCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Has no state, so that it leaves nothing in a checkpoint."""

    def __init__(self) -> None:
        self._stops = not library.script_handles_stop()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        logs = dict(logs or {})
        if "train_runtime" not in logs:  # the summary at the end, whose loss is the mean of all steps
            library.log(state.global_step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if self._stops and library.should_stop():
            self._stops = False
            control.should_training_stop = control.should_save = True
            control.should_evaluate = False
        return control
