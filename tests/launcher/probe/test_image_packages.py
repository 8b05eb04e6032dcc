"""What an image's Python can import: looked up once, from a program that may answer anything."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import pytest

from launcher.containers.find import LocalImage
from launcher.probe import image_packages
from tests.containers.samples import APPTAINER, DOCKER, PYXIS

ENGINES = LocalImage(name="mine:1", present=True, identity="sha256:1")
ANSWER = "3.12.3\ntorch 2.13.0+cu128\ntorchao 0.18.0\n"


class Starts:
    """A host on which starting an image prints `text`; None fails."""

    def __init__(self, text: str | None) -> None:
        self.text, self.asked = text, list[Sequence[str]]()

    def __call__(self, argv: Sequence[str]) -> str | None:
        self.asked.append(argv)
        return self.text


def look(host, image=ENGINES, runtime=DOCKER, python="python3", start=True):
    return image_packages.look(image, runtime, python, start=start, ask=host)


def test_an_image_is_started_once_and_alone():
    host = Starts(ANSWER)
    for _ in range(2):
        assert look(host) == ({"torch": "2.13.0+cu128", "torchao": "0.18.0"}, "")
    (argv,) = host.asked
    assert argv[:3] == ["docker", "run", "--rm"] and "--network=none" in argv and "--pull=never" in argv
    assert look(host, start=False)[1] == ""
    look(host, python="python3.11")
    look(host, LocalImage(name="mine:1", present=True, identity="sha256:2"))
    assert len(host.asked) == 3


def test_a_plan_starts_nothing():
    host = Starts(ANSWER)
    why = "a plan starts no image; `run` looks into it before anything is queued"
    assert look(host, start=False) == (None, why)
    assert not host.asked


@pytest.mark.parametrize(
    ("image", "runtime", "why"),
    [
        (ENGINES, PYXIS, "Slurm fetches it on the node"),
        (LocalImage(name="mine:1", present=False), DOCKER, "it is not on this host yet"),
    ],
)
def test_an_image_that_cannot_be_started_here_is_unknown(image, runtime, why):
    host = Starts(ANSWER)
    assert look(host, image, runtime) == (None, why)
    assert not host.asked


@pytest.mark.parametrize("text", [None, "", "Welcome to my image!\n3.12\n", "\x1b[2J\n"])
def test_an_image_without_python_is_unknown_and_asked_again(text):
    host = Starts(text)
    for _ in range(2):
        assert look(host) == (None, "python3 could not be run in it")
    assert len(host.asked) == 2


def test_odd_versions_are_left_out():
    host = Starts("3.12.3\ntorchao 0.18\x1b[2J\ntorch 2.13.0\n")
    assert look(host)[0] == {"torch": "2.13.0"}


def test_a_changed_image_file_and_every_sandbox_are_started_again(tmp_path):
    path, host = tmp_path / "torch.sif", Starts(ANSWER)
    path.write_bytes(b"one")
    image = LocalImage(name=str(path), present=True)
    for content in (b"one", b"one", b"other"):
        if path.read_bytes() != content:
            path.write_bytes(content)
        look(host, image, APPTAINER)
    assert len(host.asked) == 2 and host.asked[0][1:3] == ["exec", "--cleanenv"]
    sandbox = LocalImage(name=str(tmp_path), present=True)
    for _ in range(2):
        look(host, sandbox, APPTAINER)
    assert len(host.asked) == 4


def test_the_runtime_gets_the_environment_of_a_job_and_none_of_the_rest_of_the_shell(tmp_path, monkeypatch):
    image, given = tmp_path / "torch.sif", tmp_path / "given"
    image.write_bytes(b"one")
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nenv >{shlex.quote(str(given))}\nprintf %s {shlex.quote(ANSWER)}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    others = ("APPTAINER_BIND", "APPTAINER_NV", "SINGULARITY_BINDPATH", "APPTAINERENV_PATH", "SINGULARITYENV_PATH")
    for name in (*others, "APPTAINER_TMPDIR"):
        monkeypatch.setenv(name, "/opt")
    known, _ = image_packages.look(LocalImage(name=str(image), present=True), APPTAINER, "python3", start=True)
    assert known == {"torch": "2.13.0+cu128", "torchao": "0.18.0"}
    names = {line.partition("=")[0] for line in given.read_text().splitlines()}
    assert names.isdisjoint(others) and {"PATH", "APPTAINER_TMPDIR"} <= names


def test_a_damaged_record_is_ignored(tmp_path):
    host = Starts(ANSWER)
    look(host)
    (record,) = (tmp_path / "state" / "launcher" / "images").iterdir()
    record.write_text('{"packages": {"torchao": ["0.18"]')
    assert look(host)[0]
    assert len(host.asked) == 2
