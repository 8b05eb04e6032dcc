"""A callback that gives the launcher what Lightning logs, and ends a training that was asked to stop.

Lightning finds it by its entry point for callbacks, in processes of the launcher alone: nothing is to be added to a
script; `amp_launcher.torch.libraries.attached` enters it.
"""

from __future__ import annotations

import sys
from typing import Any

from amp_launcher.job import library, logged
from amp_launcher.world.world import rank_and_size

_LAUNCHED = rank_and_size("torch")[1]
"""The processes of the launcher. Lightning imports this for its first trainer, and sets WORLD_SIZE when that begins."""


def lightning_callbacks() -> list[Any]:
    """For the entry point of `lightning`; empty outside of the launcher."""
    return _callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """For the entry point of `pytorch_lightning`."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    if logged.receiver.receive is None:
        return []
    return [_of(sys.modules[package].Callback)]


def _of(base: type[Any]) -> Any:
    return type("JobCallback", (_JobCallback, base), {"base": base})()


def _in_spawned_rank(base: type[Any], ranks: int) -> Any:
    library.spawned_ranks = ranks
    return _of(base)


class _JobCallback:
    """Has no state, so that it leaves nothing in a checkpoint."""

    base: type[Any]

    def __init__(self) -> None:
        self._step = self._global_step = 0
        self._seen: dict[str, Any] = {}
        """The values logged before: Lightning shows them again until there are newer ones."""
        self._batches: Any = None
        self._callbacks: list[Any] = []
        """The trainer's, while those that save are left out."""
        self._stops = not library.script_handles_stop()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if library.spawned_ranks:
            return _in_spawned_rank, (self.base, library.spawned_ranks)
        return self.base, ()  # in another process that is spawned the launcher isn't there

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._global_step = trainer.global_step  # which counts the steps of each optimizer
        self._step = trainer.global_step // max(1, len(trainer.optimizers))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        if trainer.global_step != self._global_step:
            self._global_step, self._step = trainer.global_step, self._step + 1
            if trainer.log_every_n_steps and self._step % trainer.log_every_n_steps == 0:
                self._log(trainer, outputs["loss"] if isinstance(outputs, dict) and "loss" in outputs else None)
        if self._stops and _on_all_ranks(trainer) and library.should_stop():
            self._stops = False
            self._stop(trainer, module)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if _on_all_ranks(trainer):  # which take part in reducing what is logged once in an epoch
            self._log(trainer)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        if self._batches is not None:
            trainer.limit_val_batches, trainer.callbacks = self._batches, self._callbacks

    def _log(self, trainer: Any, loss: Any = None) -> None:
        metrics = dict(trainer.callback_metrics)
        fresh = {name: value for name, value in metrics.items() if value is not self._seen.get(name)}
        self._seen = metrics
        if fresh or loss is not None:
            library.log(self._step, fresh, loss)

    def _stop(self, trainer: Any, module: Any) -> None:
        """End `fit` after this batch, without the validation and the smallest number of epochs or steps that it has
        time for otherwise. Callbacks that save on an exception, as at SIGTERM, save."""
        for callback in trainer.checkpoint_callbacks:
            callback.on_exception(trainer, module, InterruptedError("the job was asked to stop"))
        # OnExceptionCheckpoint would delete what it saved when `fit` ends without an exception. What is saved at the
        # epoch's end would have it as a whole one: resumed from that, the rest of the epoch would not be trained.
        self._callbacks = [one for one in trainer.callbacks if type(one).__name__ != "OnExceptionCheckpoint"]
        saving = trainer.checkpoint_callbacks
        trainer.callbacks = [one for one in self._callbacks if one not in saving]
        self._batches, trainer.limit_val_batches = trainer.limit_val_batches, 0
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True


def _on_all_ranks(trainer: Any) -> bool:
    """Whether each rank has this callback: those that Lightning starts by commands are no processes of the launcher."""
    return int(trainer.world_size) == (library.spawned_ranks or _LAUNCHED)
