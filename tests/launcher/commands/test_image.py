"""`image`: the catalogue as a person reads it. Fetching is tested where it is done, in tests/containers."""

from __future__ import annotations

import pytest

from containers import catalogue
from launcher.__main__ import main


def test_list_has_a_row_for_every_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [each.name for each in catalogue.releases()]


def test_list_takes_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "list", "ngc-tensorflow1"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert rows
    assert all(row.startswith("ngc-tensorflow1:") for row in rows)


def test_show_prints_the_contents_of_an_image_and_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "show", "ngc-tensorflow1:19.08"]) == 0
    shown = capsys.readouterr().out
    assert "nvcr.io/nvidia/tensorflow:19.08-py3" in shown
    assert "source" in shown


@pytest.mark.parametrize(("format", "begins"), [("docker", "FROM "), ("singularity", "BootStrap: ")])
def test_render_prints_a_recipe_in_either_format(format: str, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "render", "cpu", f"format={format}", "pip=[torchao==0.18.0,einops==0.8.0]"]) == 0
    text = capsys.readouterr().out
    assert any(line.startswith(begins) for line in text.splitlines())
    assert "'torch==2.6.0+cpu' 'torchao==0.18.0' 'einops==0.8.0'" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lst"], "image lst is not one of image list, show, render, build, pull"),
        (["list", "ngc-torch"], "no ngc-torch in the catalogue"),
        (["render", "cpuu"], "did you mean cpu?"),
        (["render", "cpu", "pip=[torchao]"], "pip: torchao should be a package with its exact version"),
        (["render", "cpu", "pip=[a==1'$(id)']"], "should be a package with its exact version"),
        (["render", "cpu", "format=oci"], "format=oci is not one of docker, singularity"),
        (["build", "cpu"], "say container=docker, podman or apptainer"),
        (["show"], "image show takes one image: python -m launcher image show ngc-pytorch"),
        (["render"], "image render takes one image: python -m launcher image render pytorch"),
        (["show", "ngc-pytorch:1.0"], "the catalogue has"),
        (["pull", "ngc-pytorch"], "say container=docker, podman or apptainer"),
        (["pull", "ngc-pytorch", "conainer=docker"], "conainer= has no meaning here"),
        (["pull", "/x.sif", "container=apptainer"], "/x.sif"),
    ],
)
def test_an_unsupported_action_of_image_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", *words]) == 2
    assert says in capsys.readouterr().err
