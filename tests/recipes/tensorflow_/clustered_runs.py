"""Small trainings in a process in which XLA looks for clusters by itself; prints what was observed of them."""

from __future__ import annotations

import json

import tensorflow as tf

from recipes.precision.levels import Amp
from recipes.tensorflow_ import xla
from tests.recipes.tensorflow_.observed_runs import Training, dense_network

xla.dump_programs(True)
tf.config.optimizer.set_jit("autoclustering")
runs = {}
for level in ("o0", "o1"):
    training = Training(Amp(level=level), dense_network)
    runs[level] = training.run()
    runs[level]["compiled"] = [call["compiled"] for call in training.observer.reports[0]["calls"]]
print(json.dumps(runs))
