from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers import catalogue
from launcher.containers.catalogue import Needs, check_release, find, lacks, lines, parse, releases


def test_every_row_is_complete_and_names_its_source() -> None:
    for image in releases():
        assert parse(image.version) and parse(image.cuda) and parse(image.driver) and parse(image.python)
        assert image.reference.startswith("nvcr.io/nvidia/")
        assert image.source.startswith("https://")
    table = json.loads(Path(catalogue.__file__).with_name("ngc.json").read_text())
    assert set(table["releases"]) == {image.release for image in releases()}


def test_every_line_is_in_order_and_ends_where_it_ended() -> None:
    for line in lines():
        of_line = [image for image in releases() if image.line == line]
        assert [image.release for image in of_line] == sorted(image.release for image in of_line)
        assert not any(image.last for image in of_line[:-1])
    assert find("ngc-tensorflow").last and find("ngc-tensorflow").release == "25.02"
    assert find("ngc-tensorflow1").last and find("ngc-tensorflow1").release == "23.03"


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("ngc-pytorch:25.06", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("ngc-tensorflow:21.04", "nvcr.io/nvidia/tensorflow:21.04-tf2-py3"),
        ("ngc-tensorflow1:21.04", "nvcr.io/nvidia/tensorflow:21.04-tf1-py3"),
        ("ngc-tensorflow1:19.08", "nvcr.io/nvidia/tensorflow:19.08-py3"),
        ("ngc-paddlepaddle", "nvcr.io/nvidia/paddlepaddle:22.05-py3"),
    ],
)
def test_a_name_is_an_image_of_the_registry(name: str, reference: str) -> None:
    assert find(name).reference == reference
    assert catalogue.of_reference(reference) == find(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ngc-pytroch", "no ngc-pytroch in the catalogue (ngc-pytorch, ngc-tensorflow,"),
        ("ngc-pytroch", "did you mean ngc-pytorch?"),
        ("ngc-pytorch:25.07", "did you mean 25.0"),
        ("ngc-pytorch:25.07", "any other goes by its full name, as nvcr.io/nvidia/pytorch:26.02-py3"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        find(name)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "needs", "says"),
    [
        (
            "ngc-pytorch:22.05",
            Needs(version=(2, 4)),
            "has torch 1.12.0a0, and 2.4 is needed; the nearest that would do",
        ),
        ("ngc-pytorch:22.05", Needs(version=(2, 4)), "image=ngc-pytorch:24.05"),
        ("ngc-pytorch:22.05", Needs(python=(3, 10)), "it has Python 3.8, and 3.10 is needed"),
        ("ngc-pytorch:25.06", Needs(framework="tensorflow"), "holds torch, not tensorflow; the nearest that would do"),
        ("ngc-pytorch:25.06", Needs(framework="tensorflow"), "image=ngc-tensorflow:25.02"),
        ("ngc-tensorflow1", Needs(framework="tensorflow", version=(2, 16)), "image=ngc-tensorflow:25.02"),
        ("ngc-pytorch:24.05", Needs(dlprof=True), "it has no DLProf"),
        ("ngc-pytorch:24.05", Needs(dlprof=True), "image=ngc-pytorch:21.10"),
        ("ngc-tensorflow1", Needs(dlprof=True), "image=ngc-tensorflow1:21.10"),
        ("ngc-tensorflow1", Needs(bfloat16=True), "its tensorflow 1.15.5 has no bfloat16 on GPUs"),
        ("ngc-pytorch:20.03", Needs(bfloat16=True), "image=ngc-pytorch:21.10"),
        ("ngc-pytorch:25.12", Needs(capability=(7, 0)), "needs compute capability 7.5, and this GPU has 7.0"),
        ("ngc-pytorch:25.12", Needs(capability=(7, 0)), "image=ngc-pytorch:25.06"),
        ("ngc-pytorch:24.05", Needs(capability=(3, 7)), "none in the catalogue would do"),
        (
            "ngc-paddlepaddle",
            Needs(framework="paddle", python=(3, 10)),
            "3.10 is needed; none in the catalogue would do; give another by its full name",
        ),
        ("ngc-pytorch:22.05", Needs(capability=(9, 0)), "its CUDA 11.7.0 is older than this GPU"),
        ("ngc-pytorch:22.05", Needs(capability=(9, 0)), "image=ngc-pytorch:22.12"),
        ("ngc-pytorch:24.10", Needs(capability=(10, 0)), "image=ngc-pytorch:25.01"),
        ("ngc-pytorch:24.10", Needs(capability=(12, 0)), "image=ngc-pytorch:25.01"),
        ("ngc-pytorch:25.12", Needs(capability=(7, 0), driver="580.82.07"), "image=ngc-pytorch:25.06"),
        ("ngc-pytorch:23.08", Needs(driver="515.65.01"), "470.57, 510.47, 525.85, 535.86 on a data-centre GPU"),
        ("ngc-tensorflow1:19.08", Needs(driver="396.82"), "needs driver 418.39, or 384.111, 410 on a data-centre GPU"),
        ("ngc-tensorflow1:19.08", Needs(capability=(8, 0)), "image=ngc-tensorflow1:20.06"),
        (
            "ngc-pytorch:24.05",
            Needs(driver="510.47.03"),
            "its CUDA 12.4.1 needs driver 525.60, or 470.57, 525.85, 535.86, 545.23 on a data-centre GPU, and this "
            "host has 510.47.03; the nearest that would do is image=ngc-pytorch:23.08",
        ),
        (
            "ngc-pytorch:24.05",
            Needs(driver="470.82.01", data_centre=False),
            "needs driver 525.60, and this host has 470.",
        ),
    ],
)
def test_an_image_that_will_not_do_is_refused_with_the_nearest_that_would(name: str, needs: Needs, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        check_release(find(name), needs)
    assert says in str(error.value)
    assert str(error.value).startswith(f"image={find(name).name}: ")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("ngc-pytorch:24.05", Needs(framework="torch", version=(2, 4), python=(3, 10))),
        ("ngc-pytorch:24.05", Needs(driver="550.54.15", capability=(8, 0), bfloat16=True)),
        ("ngc-pytorch:24.10", Needs(driver="535.183.01", data_centre=False)),  # the same CUDA major version
        ("ngc-pytorch:24.05", Needs(driver="470.82.01")),  # a branch that data-centre GPUs may keep
        ("ngc-pytorch:25.12", Needs(driver="550.54.15")),  # not documented, so not refused
        ("ngc-tensorflow1:19.08", Needs(driver="418.67", capability=(7, 0))),
        ("ngc-pytorch:22.05", Needs(version=(1, 12, 0))),
        ("ngc-pytorch:20.06", Needs(dlprof=True)),  # the first that has it
        ("ngc-tensorflow1:21.10", Needs(dlprof=True)),
        # Code for 8.0 runs on 8.6 and 8.9, and what is for 10.0 on 10.3: the major number counts.
        ("ngc-pytorch:22.05", Needs(driver="535.104.05", capability=(8, 9), data_centre=False)),
        ("ngc-tensorflow:21.04", Needs(driver="535.104.05", capability=(8, 6), data_centre=False)),
        ("ngc-pytorch:25.01", Needs(driver="580.82.07", capability=(10, 3))),
        ("ngc-pytorch:24.10", Needs(driver="580.82.07", capability=(7, 0))),
    ],
)
def test_an_image_that_will_do_passes(name: str, needs: Needs) -> None:
    check_release(find(name), needs)


def test_the_nearest_release_that_is_named_meets_the_requirements() -> None:
    """Every refusal over a grid of hosts names a release that passes the same check."""
    grid = [
        Needs(framework=framework, capability=capability, driver=driver, data_centre=data_centre, dlprof=dlprof)
        for framework in ("torch", "tensorflow")
        for capability in ((6, 0), (8, 0), (12, 0))
        for driver in ("418.67", "535.104")
        for data_centre in (True, False)
        for dlprof in (True, False)
    ]
    refused = 0
    for needs in grid:
        for image in releases():
            try:
                check_release(image, needs)
            except SettingsError as error:
                refused += 1
                text = str(error)
                if "none in the catalogue" in text:
                    assert all(lacks(other, needs) for other in releases())
                else:
                    assert not lacks(find(text.rpartition("image=")[2]), needs)
    assert refused > 500


@pytest.mark.parametrize(
    ("cuda", "driver", "own", "needed"),
    [
        ("12.4.1", "525.60.13", "", False),
        ("12.4.1", "525.59", "", True),
        ("12.4.1", "535.86", "550.54.14", False),
        ("12.4.1", "470.57", "550.54.14", True),
        ("12.4.1", "470.57", "470.57", False),  # the driver that came with it
        ("12.4.1", "", "", False),  # no GPU
    ],
)
def test_a_driver_older_than_cuda_needs_works_by_forward_compatibility_on_data_centre_gpus(cuda, driver, own, needed):
    assert catalogue.needs_compatibility(cuda, Needs(driver=driver), own) is needed
    assert not catalogue.needs_compatibility(cuda, Needs(driver=driver, data_centre=False), own)


def test_a_consumer_gpu_is_recognized_by_its_name() -> None:
    assert catalogue.is_data_centre("NVIDIA A100-SXM4-80GB") and catalogue.is_data_centre("Tesla V100-SXM2-32GB")
    assert not catalogue.is_data_centre("NVIDIA GeForce RTX 4090") and not catalogue.is_data_centre("NVIDIA TITAN V")
