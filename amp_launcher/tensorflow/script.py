"""A user's own script in TensorFlow: `python -m amp_launcher.tensorflow.script amp=o2 script=train.py -- --lr 0.1`.

What can be applied around it is applied: Keras's policy for o2 and o3, the graph rewrite for o1 on a CPU. What it
applies itself, by `Precision()` or in its own way, is left to it. Every graph of the whole run is observed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.around import keras_callback, random_draws
from amp_launcher.around import wrap as shared
from amp_launcher.around.early import EarlyVerdict
from amp_launcher.around.once_imported import hidden, once_imported
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.wrapper import Started, Wrapper
from amp_launcher.loop.profiling import Profiling
from amp_launcher.precision.levels import PRESETS, LossScale
from amp_launcher.precision.support import KERAS_BACKEND
from amp_launcher.tensorflow import devices, profiling, xla
from amp_launcher.tensorflow.hardware import TensorFlowDevice, capability_of, kind_of
from amp_launcher.tensorflow.observe.script_observer import ScriptObserver
from amp_launcher.tensorflow.observe.step_counter import StepCounter
from amp_launcher.tensorflow.precision import Mechanism, grappler
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import rank_and_size

WITHOUT_LAYERS = (
    " (a policy is that of Keras's layers, and the script has none: on a CPU amp=o1 rewrites its graphs; else cast in "
    "the script, and say train.precision=script)"
)
WITHOUT_GRAPHS = (
    " (only graphs are rewritten, and the script trains outside of them: write @tf.function before its step, or leave "
    "run_eagerly=True out)"
)


class TensorFlowWrapper(Wrapper):
    """`amp_launcher.around.wrapper.Wrapper` in TensorFlow."""

    observer: ScriptObserver
    profiling: Profiling

    def __init__(self, started: Started) -> None:
        settings = started.chosen.settings
        kind = kind_of(settings.device)
        self.device = TensorFlowDevice(kind)
        super().__init__(started, kind, capability_of(kind))
        if settings.xla:
            xla.dump_programs(True, os.environ)
            tf.config.optimizer.set_jit("autoclustering")
        scaled_by_keras = not self.own and self.mode.dtype == "float16"
        if scaled_by_keras:
            if settings.loss_scale != LossScale():
                raise SettingsError(
                    f"loss_scale.mode={settings.loss_scale.mode}: Keras scales the loss of this script by its own "
                    "rule, dynamically from 2^15; leave loss_scale out",
                    "loss_scale",
                )
            self.mode = dataclasses.replace(self.mode, loss_scale=PRESETS["keras"])
        variables = grappler.own_variables()
        # It scales no loss: making a scaler's variables would initialise TensorFlow's devices before the script does.
        self.precision = Mechanism.apply(dataclasses.replace(self.mode, loss_scale=PRESETS["none"]))
        if self.own and settings.amp.level == "o1":  # a script that rewrites graphs itself may rely on its variables
            grappler.switch_off()
            grappler.set_variables(variables)
        rank, self._processes = rank_and_size("tensorflow")
        self.profiling = Profiling(settings.profile, profiling.make(settings.profile, rank), started.chosen.run)
        self.observer = ScriptObserver(self.precision, scaled_by_keras=scaled_by_keras)
        if self._processes > 1:
            # The script's own strategy would wait in silence for a worker that never starts.
            devices.join_workers(kind, len(tf.config.list_physical_devices("GPU")) if kind == "cuda" else 0)

    def tell_early(self, early: EarlyVerdict) -> None:
        super().tell_early(early)
        advice = early.advice

        def advise() -> str:
            if self.own or self.has_own_precision:
                return advice()
            if self.mode.mechanism == "keras_policy" and not self.observer.has_layers:
                return WITHOUT_LAYERS
            eagerly = self.mode.mechanism == "grappler" and self.observer.trains_eagerly()
            return WITHOUT_GRAPHS if eagerly else advice()

        early.advice = advise

    @contextlib.contextmanager
    def around(self, meter: StepMeter) -> Iterator[None]:
        before = keras.config.dtype_policy()
        self._counter = StepCounter(meter, self.observer, self.profiling, waits=self.device.kind == "cuda")
        meter.disturbed = lambda: self.profiling.running
        with (
            hidden("keras", _imported),
            hidden("tensorflow", lambda library: random_draws.draw_again()),
            self.observer.observing(),
            self._counter.counting(),
            keras_callback.attached(self._processes, each_batch=self.device.kind != "cuda"),
            contextlib.ExitStack() as stack,
        ):
            stack.callback(keras.config.set_dtype_policy, before)
            if not self.own:
                keras.config.set_dtype_policy(self.precision.policy)
                stack.enter_context(once_imported("tf_keras", self.observer.guard.hook(self._set_older_policy)))
            yield

    def _set_older_policy(self, library: Any) -> None:
        library.mixed_precision.set_global_policy(self.precision.policy)

    def conclude(self) -> None:
        self._counter.conclude()
        super().conclude()

    def give_way(self) -> None:
        keras.config.set_dtype_policy("float32")
        if "tf_keras" in sys.modules:
            sys.modules["tf_keras"].mixed_precision.set_global_policy("float32")


def _imported(library: Any) -> None:
    """The script imports Keras, which is there already. Raises `SettingsError` where alone it would have another
    backend."""
    random_draws.draw_again()
    file = Path(os.environ.get("KERAS_HOME") or "~/.keras", "keras.json").expanduser()
    backend, source = os.environ.get(KERAS_BACKEND), KERAS_BACKEND
    if not backend:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # as Keras reads it
            backend, source = json.loads(file.read_text()).get("backend"), str(file)
    if backend and backend != library.backend.backend():
        framework = "torch" if backend == "torch" else "none"
        raise SettingsError(
            f"framework=tensorflow: Keras is on {backend} here, by {source}; say framework={framework}", "framework"
        )


if __name__ == "__main__":
    sys.exit(shared.main("tensorflow", sys.argv[1:], TensorFlowWrapper))
