"""Forward compatibility of NVIDIA's images, whose entrypoint is not run, with a stub of their folder."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.containers.description import COMPATIBILITY, Mount
from launcher.containers.runtimes import wrap
from launcher.containers.words import to_bash
from tests.containers import samples
from tests.containers.real import Place, image_of
from tests.containers.test_equivalence import WAYS, runtime_of
from tests.testbed.facts import Testbed


@pytest.mark.testbed
@pytest.mark.parametrize("way", WAYS)
def test_the_images_own_driver_libraries_come_first_where_it_has_them(way: str, place: Place, testbed: Testbed) -> None:
    runtime = runtime_of(way)
    image = testbed.images["python"].sif if way == "apptainer-sif" else image_of(runtime, testbed)
    plain = place.container(image, words=("it's $HOME",), environment={"LD_LIBRARY_PATH": "/opt/own"})
    without = dataclasses.replace(plain, forward_compatibility=True)
    stub = place.run / "compat"
    stub.mkdir()
    stub.chmod(0o755)
    mounts = (*plain.mounts, Mount(source=str(stub), target=COMPATIBILITY, read_only=True))
    own = place.probe(plain, runtime)["env"]["LD_LIBRARY_PATH"]
    assert own.split(":")[0] == "/opt/own"
    assert place.probe(without, runtime)["env"]["LD_LIBRARY_PATH"] == own
    seen = place.probe(dataclasses.replace(without, mounts=mounts), runtime)
    assert seen["env"]["LD_LIBRARY_PATH"] == f"{COMPATIBILITY}:{own}"
    assert seen["argv"][-1] == "it's $HOME"


@pytest.mark.parametrize("kind", ["docker", "podman", "apptainer", "pyxis"])
def test_the_command_of_every_runtime_has_the_same_words_for_it(kind: str) -> None:
    container = dataclasses.replace(
        samples.FULL, image=samples.IMAGES[kind], secrets={}, argv=("python3", "a b"), forward_compatibility=True
    )
    *_, shell, option, text, name, first, last = wrap(container, samples.RUNTIMES[kind]).argv
    assert (shell, option, name, first, last) == ("/bin/sh", "-c", "sh", "python3", "a b")
    assert text == (
        "[ ! -d /usr/local/cuda/compat/lib.real ] || export "
        '"LD_LIBRARY_PATH=/usr/local/cuda/compat/lib.real${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; exec "$@"'
    )
    assert to_bash(text).startswith("'")
