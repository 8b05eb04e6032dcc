"""Starting and signalling with the real runtimes. How containers end with their runs, and where secrets are, is in
`tests/launcher/contained`."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.containers.description import Container
from launcher.containers.runtime import Runtime
from launcher.containers.runtimes import wrap
from tests.containers.readers import fill
from tests.containers.real import CONTAINED, PODMAN, PYTHON, Place, image_of
from tests.testbed.bed import wait_until

pytestmark = pytest.mark.testbed

# Says that it runs, then goes on until it is told to stop, and saves for a while. A signal to the whole group arrives
# twice in Apptainer, directly and handed on, so that a handler may only leave a note.
TRAINER = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
open(sys.argv[1] + "/running", "w").write(str(os.getpid()))
until = time.time() + 600
while not asked and time.time() < until:
    time.sleep(0.05)
time.sleep(0.5)
open(sys.argv[1] + "/stopped", "w")
sys.exit(85)
"""


def trainer(place: Place, runtime: Runtime, **changes: object) -> Container:
    (place.code / "trainer.py").write_text(TRAINER)
    argv = (PYTHON, str(place.code / "trainer.py"), str(place.run))
    return dataclasses.replace(place.container(image_of(runtime, place.testbed)), argv=argv, **changes)  # type: ignore[arg-type]


@contextmanager
def running(place: Place, container: Container, runtime: Runtime) -> Iterator[subprocess.Popen[bytes]]:
    """The job in a session of its own, as a direct queue starts it, once its trainer says that it runs."""
    path = place.write("job.sh", place.script(container, runtime))
    process = subprocess.Popen(
        place.testbed.as_user(["bash", str(path)]), stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
    )
    try:
        assert wait_until(lambda: (place.run / "running").exists(), 60), "the trainer did not start"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        remove(place, container, runtime)


def remove(place: Place, container: Container, runtime: Runtime) -> None:
    if argv := fill(wrap(container, runtime).remove, {}):
        subprocess.run(place.testbed.as_user(argv), capture_output=True)


@CONTAINED
def test_a_job_that_ends_by_a_signal_has_its_exit_code(runtime: Runtime, place: Place) -> None:
    body = "import os; os.kill(os.getpid(), 9)"
    container = dataclasses.replace(place.container(image_of(runtime, place.testbed)), argv=(PYTHON, "-c", body))
    assert place.start(container, runtime).returncode == 137


@CONTAINED
def test_a_program_that_is_not_there_fails(runtime: Runtime, place: Place) -> None:
    container = dataclasses.replace(place.container(image_of(runtime, place.testbed)), argv=("no-such-program",))
    done = place.start(container, runtime)
    assert done.returncode != 0
    # Podman's init is what fails there, and it doesn't say at what.
    assert ("failed to exec" if runtime is PODMAN else "no-such-program") in done.stderr


@CONTAINED
def test_term_reaches_the_trainer_and_its_exit_code_comes_back(runtime: Runtime, place: Place) -> None:
    with running(place, trainer(place, runtime), runtime) as process:
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == 85
    assert (place.run / "stopped").exists()


@CONTAINED
def test_a_secret_whose_file_is_gone_stops_the_job(runtime: Runtime, place: Place) -> None:
    container = trainer(place, runtime, secrets={"API_KEY": str(place.folder / "gone")})
    assert place.start(container, runtime).returncode != 0
    assert not (place.run / "running").exists()
