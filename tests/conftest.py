import gc
import os
import signal

from hypothesis import HealthCheck, settings

from tests import patience  # noqa: F401 # measures this machine before the first test

pytest_plugins = ["tests.testbed.plugin", "tests.launcher.users"]

# A shell starts what it puts into the background deaf to Ctrl-C, and every process below inherits that. Tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Parts of the suite share the cores: a second thread would only wait for them, and OpenMP's wait by computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A launched TensorFlow at o1 has it on any CPU, and what is compared with it has to have it too.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def pytest_collection_finish() -> None:
    """Leave what was imported out of collections, of which there is one in each observed step."""
    gc.collect()
    gc.freeze()


# Schedulers are asked once in 30 s. Tests that don't count the questions wait less.
os.environ.setdefault("LAUNCHER_ASK_EVERY", "0.2")

# An example has no limit of time: what is slow is the machine.
settings.register_profile("gate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gate")
