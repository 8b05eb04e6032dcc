"""A callback that gives the launcher what Keras's `fit` logs, and ends a training that was asked to stop.

Under the launcher each `fit` has it, whatever Keras's backend: nothing is to be added to a script. Standard library
only.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from amp_launcher.around.once_imported import once_imported
from amp_launcher.around.replaced import replaced
from amp_launcher.job import library

_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Of each optimizer, with those that it skipped: a second `fit` continues."""


@contextlib.contextmanager
def attached(processes: int, *, each_batch: bool = True) -> Iterator[None]:
    """The script runs in this context, in one of so many processes. Without `each_batch` losses are read at the end of
    epochs alone, where reading one waits for a GPU."""
    with contextlib.ExitStack() as stack:

        def attach(keras: ModuleType) -> None:
            if not hasattr(keras, "ops"):
                return  # older than Keras 3
            callbacks, restores = keras.callbacks, keras.callbacks.BackupAndRestore
            methods = {"async_safe": not each_batch, "ops": keras.ops}
            kind = type("JobCallback", (_JobCallback, callbacks.Callback), methods)

            def make(given: list[Any]) -> Any:
                # A backup is deleted when `fit` ends by itself, and says that its last epoch was a whole one.
                stops = processes == 1 and not any(isinstance(other, restores) for other in given)
                return kind(each_batch, stops, [one for one in given if isinstance(one, callbacks.ModelCheckpoint)])

            stack.enter_context(_added(callbacks.CallbackList, make))

        stack.enter_context(once_imported("keras", attach))
        yield


def _added(owner: type[Any], make: Callable[[list[Any]], Any]) -> contextlib.AbstractContextManager[None]:
    """Each list of callbacks ends with one more, after those that load a checkpoint or set a handler as it begins."""
    original = owner.__init__

    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
        original(self, [*given, make(given)], *args, **kwargs)

    return replaced(owner, "__init__", __init__)


class _JobCallback:
    model: Any
    ops: Any

    def __init__(self, each_batch: bool, stops: bool, saving: Sequence[Any]) -> None:
        """`saving` are those of the same `fit` that save the model."""
        super().__init__()
        self._each_batch, self._stops = each_batch, stops
        self._named_by_epoch = [one for one in saving if one.save_freq == "epoch" and "{epoch" in str(one.filepath)]
        self._first = self._step = self._before = self._batches = 0
        """The step at which `fit` began, and that it has come to; the batches of earlier epochs, and of this one."""

    def on_train_begin(self, logs: Any = None) -> None:
        if (optimizer := self._optimizer) is not None:
            count = self.ops.convert_to_numpy(self.ops.convert_to_tensor(optimizer.iterations))
            self._first = self._step = max(int(count), _steps.get(optimizer, 0))
        self._stops &= not library.script_handles_stop()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._batches = batch + 1
        each = getattr(self._optimizer, "gradient_accumulation_steps", None) or 1
        step = self._first + (self._before + self._batches) // each
        if step > self._step:
            self._step = step
            if self._each_batch:
                library.log(step, logs or {})
        if self._stops and self.model is not None and library.should_stop():
            self.model.stop_training = True
            for saving in self._named_by_epoch:  # one that begins again after that epoch would not train the rest of it
                saving.save_freq = math.inf

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._before, self._batches = self._before + self._batches, 0
        library.log(self._step, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        if (optimizer := self._optimizer) is not None:
            _steps[optimizer] = self._step
        for saving in self._named_by_epoch:
            saving.save_freq = "epoch"

    @property
    def _optimizer(self) -> Any:
        """None too in a loop of the script's own, which may have a list of callbacks without a model."""
        return getattr(self.model, "optimizer", None)
