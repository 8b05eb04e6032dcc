"""TensorFlow is imported once, quietly, for all tests here; and left as it was before."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as amp_launcher.tensorflow does, which comes too late here

pytest.importorskip("tensorflow")

from tensorflow.python.framework import config

import amp_launcher.tensorflow
from amp_launcher.tensorflow.precision import grappler
from tests.amp_launcher import forking

assert amp_launcher.tensorflow
forking.preload("amp_launcher.recipes.mnist.train_tensorflow", "amp_launcher.tensorflow.script")


@pytest.fixture(autouse=True)
def graphs_as_they_are():
    """Graph rewrites and determinism are switched on for the process, by tests in other folders too."""
    config.disable_op_determinism()
    before = {name: value for name, value in os.environ.items() if name.startswith(grappler.PREFIX)}
    yield
    for name in [name for name in os.environ if name.startswith(grappler.PREFIX)]:
        del os.environ[name]
    os.environ.update(before)
    grappler.switch_off()
