from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from containers.image_recipes import CPU, PYTORCH, RECIPES, find
from containers.images import Format, ImageRecipe, build_argv, file_name, from_mapping, render
from recipes.typed import SettingsError, plain
from tests import golden
from tests.containers.hostile import TABLE
from tests.containers.real import Place
from tests.testbed.facts import Testbed

pytest.importorskip("hpccm", reason="pip install 'amp-launcher[images]'")

GOLDEN = Path(__file__).parent / "golden" / "images"
SHOWN = Path(__file__).parents[2] / "containers" / "recipes"
FORMATS = pytest.mark.parametrize("format", ["docker", "singularity"])

EVERYTHING = ImageRecipe(
    name="everything",
    summary="every field of a recipe",
    base="ngc-pytorch:24.05",
    apt=("git", "curl=7.81.0-1ubuntu1"),
    pip=("numpy==1.26.4", "scikit-learn[tests]==1.5.2"),
    index="https://example.org/simple",
    environment={"PATH": "/opt/x/bin:$PATH", "MODE": "a=b,c"},
    files={"patches/one.patch": "/opt/patches/one.patch"},
    labels={"org.opencontainers.image.title": "everything"},
    commands=("echo 'done'", "rm -rf /var/tmp/*"),
    ucx="1.15.0",
    openmpi="4.1.6",
    run={"docker": "by hand"},
)


@FORMATS
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_golden_files_of_containers_recipes_are_what_is_rendered(recipe: ImageRecipe, format: Format) -> None:
    golden.check(SHOWN / file_name(recipe, format), render(recipe, format))


def test_containers_recipes_holds_nothing_else() -> None:
    assert {path.stem for path in SHOWN.iterdir()} == RECIPES.keys()


@FORMATS
def test_golden_image_with_every_field(format: Format) -> None:
    golden.check(GOLDEN / file_name(EVERYTHING, format), render(EVERYTHING, format))


def test_one_format_after_the_other_changes_nothing() -> None:
    """hpccm keeps its format, distribution and architecture in globals."""
    first = render(CPU, "docker")
    render(EVERYTHING, "singularity")
    render(dataclasses.replace(PYTORCH, architecture="aarch64"), "singularity")
    assert render(CPU, "docker") == first


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_the_same_after_a_file(recipe: ImageRecipe) -> None:
    assert from_mapping(plain(recipe)) == recipe


MINIMAL = {"name": "x", "summary": "x", "base": "debian:12"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"commnads": ["id"]}, "unknown key commnads; did you mean commands?"),
        ({"pip": ["numpy"]}, "pip: numpy should be a package with its exact version, as numpy==1.26.4"),
        ({"pip": ["numpy>=1"]}, "should be a package with its exact version"),
        ({"pip": ["-r x"]}, "should be a package with its exact version"),
        ({"pip": ["numpy==1; id"]}, "should be a package with its exact version"),
        ({"apt": ["git; id"]}, "apt: git; id should be a package"),
        ({"apt": ["-o=x"]}, "apt: -o=x should be a package"),
        ({"environment": {"A": "x y"}}, "environment.A: x y should be letters, digits and"),
        ({"environment": {"A B": "x"}}, "environment: A B should be a name"),
        ({"environment": {"A": 1.5}}, "environment.A is text, and 1.5 is a number: quote it"),
        ({"labels": {"a": "$(id)"}}, "labels.a: $(id) should be letters, digits and"),
        ({"files": {"../x": "/y"}}, "files.../x=/y should be a path below the folder, and an absolute one"),
        ({"files": {"x": "y"}}, "files.x=y should be a path below the folder, and an absolute one"),
        ({"files": {"/etc/shadow": "/y"}}, "should be a path below the folder"),
        ({"commands": ["id\nid"]}, "control character"),
        ({"base": "Not An Image"}, "is neither a name of the catalogue"),
        ({"base": "./sandbox"}, "base=./sandbox should be absolute"),
        ({"distribution": "arch"}, "distribution=arch is not one of ubuntu20"),
        ({"ucx": "latest"}, "ucx: latest should be a version"),
        ({"index": "ftp://x"}, "index: ftp://x should be an address"),
        ({"name": "A b"}, "name: A b should be letters, digits and dashes"),
    ],
)
def test_a_wrong_value_in_an_image_recipe_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as error:
        from_mapping({**MINIMAL, **change})
    assert says in str(error.value)


@pytest.mark.parametrize("missing", ["name", "summary", "base"])
def test_a_recipe_without_its_essentials_is_refused(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"an image recipe needs {missing}"):
        from_mapping({key: value for key, value in MINIMAL.items() if key != missing})


@FORMATS
def test_no_hostile_value_gets_into_a_file(format: Format) -> None:
    for text in TABLE:
        for change in ({"environment": {"A": text}}, {"labels": {"a": text}}, {"apt": (text,)}, {"pip": (text,)}):
            recipe = dataclasses.replace(CPU, **change)
            try:
                rendered = render(recipe, format)
            except SettingsError:
                continue
            assert not set(text) & set(" '\"`\\;&|<>()\n"), text
            assert text in rendered


def test_a_dockerfile_begins_with_a_registrys_image() -> None:
    with pytest.raises(SettingsError, match="a Dockerfile begins with a registry's image"):
        render(dataclasses.replace(CPU, base="/sandboxes/debian"), "docker")


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"no image recipe pytroch \(pytorch, .*did you mean pytorch\?"):
        find("pytroch")


def test_versions_that_the_base_image_pins_are_named_where_pip_fails(tmp_path: Path) -> None:
    """The line of the recipe with the real pip, which finds nothing here."""
    recipe = dataclasses.replace(CPU, pip=("no-such-thing==2.1.0", "Nor_This[x]==1.5.2", "six==0.0.1"), index="")
    (line,) = (each for each in render(recipe, "docker").splitlines() if "pip install" in each)
    pins = tmp_path / "constraint.txt"
    pins.write_text("# tested together\nno-such-thing==1.26.4\nnor.this == 1.5.2 ; python_version > '3'\nno-such==1\n")
    command = line.removeprefix("RUN ")
    environment = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1"}
    for constraint, says in (
        ({"PIP_CONSTRAINT": str(pins)}, "no-such-thing==1.26.4\nnor.this == 1.5.2 ; python_version > '3'\n"),
        ({"PIP_CONSTRAINT": "/dev/null"}, "Of these packages it says:\nnothing\n"),
    ):
        done = subprocess.run(["sh", "-c", command], env={**environment, **constraint}, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.endswith(says) and "or take a base without it" in done.stderr
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "pins" not in done.stderr


def test_nothing_heavy_is_imported_until_something_is_rendered() -> None:
    text = "import sys, containers.image_recipes, containers.runtimes, containers.catalogue, containers.pull; "
    text += "print([each for each in ('hpccm', 'yaml', 'hydra') if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.testbed
@pytest.mark.slow
def test_both_formats_build_for_real_into_the_same_packages(place: Place, testbed: Testbed) -> None:
    """The recipe of the CPU image on the testbed's own Debian, with packages that are there already."""
    pins = ("first-example==1.2.3", "second-example==4.5")
    for pin in pins:
        make_wheel(place.folder / "wheels", *pin.split("=="))
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/wheels"}
    recipe = dataclasses.replace(CPU, pip=pins, index="", environment=local, files={"wheels": "/opt/wheels"})
    image = testbed.images["python"]
    name, built = f"{place.folder.name}:cpu", str(place.folder / "cpu")

    docker = dataclasses.replace(recipe, base=image.docker)
    file = place.write(file_name(docker, "docker"), render(docker, "docker"), mode=0o644)
    options = ["--network=host", "--quiet"]
    builds = [build_argv("docker", client=["docker"], options=options, file=str(file), folder=".", target=name)]
    singularity = dataclasses.replace(recipe, base=image.sif)
    file = place.write(file_name(singularity, "singularity"), render(singularity, "singularity"), mode=0o644)
    options = ["--sandbox"]  # packing it would take longest
    client = ["apptainer"]
    builds += [build_argv("singularity", client=client, options=options, file=str(file), folder=".", target=built)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda argv: run(argv, place), builds))

    freeze = ["python3", "-m", "pip", "freeze"]
    try:
        in_docker = run(["docker", "run", "--rm", "--network=none", name, *freeze], place)
        in_apptainer = run(["apptainer", "exec", "--cleanenv", built, *freeze], place)
    finally:
        run(["docker", "image", "rm", "--force", name], place)
    assert in_docker == in_apptainer
    assert set(pins) <= set(in_docker.split())


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A package with nothing in it."""
    folder.mkdir(exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(f"{stem}.dist-info/{each},,\n" for each in ("METADATA", "WHEEL", "RECORD")),
    }
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, text in info.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)


def run(argv: Sequence[str], place: Place) -> str:
    """A command as the testbed's user, in the place's folder."""
    done = subprocess.run(
        place.testbed.as_user(argv, {"DOCKER_BUILDKIT": "0"}),
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@FORMATS
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_run_line_starts_what_the_build_line_makes(name: str, format: Format) -> None:
    image = {"docker": f" container=docker image={name} ", "singularity": f" container=apptainer image=./{name}.sif "}
    for line in render(RECIPES[name], format).splitlines():
        if line.startswith("# Run: python -m launcher"):
            assert image[format] in line
        elif line.startswith("# Run: "):
            assert format == "docker" and line.startswith("# Run: docker run ")


def test_a_run_line_of_an_unknown_format_is_refused() -> None:
    with pytest.raises(SettingsError, match="run=podman is not one of docker, singularity"):
        render(dataclasses.replace(CPU, run={"podman": "podman run cpu"}), "docker")
