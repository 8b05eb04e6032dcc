"""`image`: the catalogue as a person reads it. Fetching is tested where it is done, in tests/containers."""

from __future__ import annotations

import pytest

from launcher.__main__ import main
from launcher.containers import catalogue


@pytest.mark.parametrize("lines", [[], ["ngc-tensorflow1"]])
def test_list_has_a_row_for_every_image_or_for_those_of_a_line(lines, capsys):
    assert main(["image", "list", *lines]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    listed = [release.name for release in catalogue.releases() if not lines or release.line in lines]
    assert listed and [row.split()[0] for row in rows] == listed


def test_show_prints_the_contents_of_an_image_and_their_source(capsys):
    assert main(["image", "show", "ngc-tensorflow1:19.08"]) == 0
    shown = capsys.readouterr().out
    assert "nvcr.io/nvidia/tensorflow:19.08-py3" in shown
    assert "source" in shown


@pytest.mark.parametrize(("format", "begins"), [("docker", "FROM "), ("singularity", "BootStrap: ")])
def test_render_prints_a_recipe_in_either_format(format, begins, capsys):
    assert main(["image", "render", "cpu", f"format={format}"]) == 0
    text = capsys.readouterr().out
    assert any(line.startswith(begins) for line in text.splitlines())
    assert "'torch==2.6.0+cpu'" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lst"], "image lst is not one of list, show, render, pull; did you mean list?"),
        (["list", "ngc-torch"], "no ngc-torch in the catalogue"),
        (["render", "cpuu"], "did you mean cpu?"),
        (["render", "cpu", "format=oci"], "format=oci is not one of docker, singularity"),
        (["show"], "image show takes one image: python -m launcher image show ngc-pytorch"),
        (["show", "./no.sif"], "image=./no.sif: there is no such file or folder here"),
        (["render"], "image render takes one image: python -m launcher image render pytorch"),
        (["show", "ngc-pytorch:1.0"], "the catalogue has"),
        (["pull", "ngc-pytorch", "conainer=docker"], "conainer= has no meaning here"),
        (["pull", "/x.sif", "container=apptainer"], "/x.sif"),
    ],
)
def test_an_unsupported_action_of_image_is_refused(words, says, capsys):
    assert main(["image", *words]) == 2
    assert says in capsys.readouterr().err
