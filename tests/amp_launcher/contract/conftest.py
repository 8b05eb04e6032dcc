"""All frameworks are in this one process, Paddle first."""

import pytest

from tests.amp_launcher.paddle import conftest
from tests.amp_launcher.tensorflow.conftest import graphs_as_they_are

assert conftest and graphs_as_they_are


@pytest.fixture
def small_discriminator(monkeypatch):
    """The GAN's: a CPU takes long in float16, most of all in convolutions."""
    for framework in ("torch", "tensorflow"):
        monkeypatch.setattr(f"amp_launcher.recipes.gan.train_{framework}.DISCRIMINATOR", (4, 8, 8))
