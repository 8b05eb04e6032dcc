from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_launcher.typed import SettingsError
from launcher.containers import catalogue
from launcher.containers.references import local_name, release_of, resolve
from tests.containers.hostile import TABLE, TEXT

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("given", "form", "reference"),
    [
        ("ngc-pytorch:25.06", "registry", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("nvcr.io/nvidia/pytorch:25.06-py3", "registry", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("nvcr.io#nvidia/pytorch:25.06-py3", "registry", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "registry", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("python", "registry", "docker.io/library/python:latest"),
        ("python:3.12-slim", "registry", "docker.io/library/python:3.12-slim"),
        ("me/mine:v1", "registry", "docker.io/me/mine:v1"),
        ("localhost:5000/a/b:c", "registry", "localhost:5000/a/b:c"),
        ("127.0.0.1:5000/a@" + DIGEST, "registry", f"127.0.0.1:5000/a@{DIGEST}"),
        ("nvcr.io/nvidia/pytorch:25.06-py3@" + DIGEST, "registry", f"nvcr.io/nvidia/pytorch@{DIGEST}"),
    ],
)
def test_what_a_registry_holds(given: str, form: str, reference: str) -> None:
    image = resolve(given)
    assert (image.form, image.reference, image.given) == (form, reference, given)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ("/images/a b.sif", "sif"),
        ("images/tf2_21.04-py3.simg", "sif"),
        ("x.sqsh", "squashfs"),
        ("/sandboxes/pytorch", "sandbox"),
        ("./pytorch", "sandbox"),
        ("~/pytorch", "sandbox"),
    ],
)
def test_what_a_host_holds(given: str, form: str) -> None:
    image = resolve(given)
    assert (image.form, image.path) == (form, given)


def test_an_image_of_the_catalogue_is_known_by_any_of_its_names() -> None:
    by_name, in_full = resolve("ngc-pytorch:25.06"), resolve("nvcr.io/nvidia/pytorch:25.06-py3")
    assert by_name.release == in_full.release is not None
    assert resolve("nvcr.io/nvidia/pytorch:19.01-py3").release is None


@pytest.mark.parametrize(
    "given", ["", "Python", "a b", "a//b", "-x", "a:b:c", "a@sha256:1", "http://x/y", "a/b:", "é", "$(id)", "a\nb"]
)
def test_a_text_that_names_no_image_is_refused(given: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolve(given)
    assert error.value.key == "image"


@pytest.mark.parametrize(
    ("image", "declared", "release"),
    [
        (None, None, None),
        ("mine:local", None, None),
        ("ngc-pytorch:25.06", None, "ngc-pytorch:25.06"),
        ("mine:local", "ngc-pytorch:25.06", "ngc-pytorch:25.06"),
        (None, "ngc-pytorch:25.06", "ngc-pytorch:25.06"),
        ("ngc-pytorch:25.06", "ngc-pytorch:25.06", "ngc-pytorch:25.06"),
        ("mine:local", "other", None),
        (None, "other", None),
    ],
)
def test_an_image_is_the_release_of_its_name_or_the_one_it_is_said_to_be(image, declared, release) -> None:
    assert release_of(image, declared) == (catalogue.find(release) if release else None)


@pytest.mark.parametrize("declared", ["other", "ngc-pytorch:25.03"])
def test_a_release_that_contradicts_the_images_name_is_refused(declared: str) -> None:
    with pytest.raises(
        SettingsError, match=f"image.is={declared}, and image=ngc-pytorch:25.06 is ngc-pytorch:25.06 by"
    ):
        release_of("ngc-pytorch:25.06", declared)


def test_a_misspelt_catalogue_name_is_met_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"did you mean ngc-tensorflow\?"):
        resolve("ngc-tensorflo")


@given(text=st.one_of(TEXT, st.sampled_from(TABLE)))
def test_any_text_is_an_image_or_refused(text: str) -> None:
    try:
        image = resolve(text)
    except SettingsError:
        return
    if image.form == "registry":
        assert not set(image.reference) & set(" '\"$`\\,")


@pytest.mark.parametrize(
    ("given", "kind", "name"),
    [
        ("ngc-pytorch:25.06", "docker", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ("mine:local", "docker", "mine:local"),
        ("mine:local", "podman", "mine:local"),
        ("me/mine", "docker", "docker.io/me/mine:latest"),
        ("ngc-pytorch:25.06", "apptainer", "/cache/x.sif"),
        ("/a/b.sif", "apptainer", "/a/b.sif"),
        ("/a/sandbox", "apptainer", "/a/sandbox"),
        ("ngc-pytorch:25.06", "pyxis", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("localhost:5000/a/b", "pyxis", "localhost:5000#a/b:latest"),
        ("python:3.12", "pyxis", "library/python:3.12"),
        ("/a/b.sqsh", "pyxis", "/a/b.sqsh"),
        ("/a/b.sif", "none", ""),
    ],
)
def test_each_runtime_gets_its_own_arguments(given: str, kind: str, name: str) -> None:
    assert local_name(resolve(given), kind, stored="/cache/x.sif") == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("/a/b.sif", "docker", "docker runs images of a registry; for this one say container=apptainer"),
        ("/a/sandbox", "podman", "say container=apptainer"),
        ("/a/b.sqsh", "docker", "docker runs images of a registry"),
        ("/a/b.sqsh", "apptainer", "say container=pyxis"),
        ("/a/b.sif", "pyxis", "pyxis runs registry images and .sqsh files"),
        ("a@" + DIGEST, "pyxis", "enroot fetches by tag"),
    ],
)
def test_a_form_that_a_runtime_cannot_run_is_refused(given: str, kind: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        local_name(resolve(given), kind)  # type: ignore[arg-type]
    assert says in str(error.value)


def test_an_image_that_is_not_pulled_yet_is_named_with_its_registry() -> None:
    assert local_name(resolve("ngc-pytorch:25.06"), "apptainer") == "docker://nvcr.io/nvidia/pytorch:25.06-py3"
