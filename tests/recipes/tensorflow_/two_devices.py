"""The MNIST trainer in a process whose CPU is two devices."""

from __future__ import annotations

import recipes.tensorflow_  # TensorFlow without its messages
from recipes.tensorflow_ import loop, mnist
from tests.recipes.tensorflow_ import split_cpu

assert recipes.tensorflow_ and split_cpu
loop.start("mnist", mnist.train)
