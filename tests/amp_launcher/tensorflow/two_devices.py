"""The MNIST trainer in a process whose CPU is two devices."""

from __future__ import annotations

import amp_launcher.tensorflow  # TensorFlow without its messages
from amp_launcher.recipes.mnist import train_tensorflow as mnist
from amp_launcher.tensorflow import loop
from tests.amp_launcher.tensorflow import split_cpu

assert amp_launcher.tensorflow and split_cpu
loop.start("mnist", mnist.train)
