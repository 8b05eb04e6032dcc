from __future__ import annotations

import dataclasses
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers.image_recipes import CPU, PYTORCH, RECIPES, find
from launcher.containers.images import Format, ImageRecipe, file_name, render
from tests import golden
from tests.containers.real import Place
from tests.testbed.facts import Testbed

pytest.importorskip("hpccm", reason="pip install 'amp-launcher[images]'")

SHOWN = Path(__file__).parents[2] / "containers" / "recipes"
FORMATS = pytest.mark.parametrize("format", ["docker", "singularity"])


@FORMATS
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_golden_files_of_containers_recipes_are_what_is_rendered(recipe: ImageRecipe, format: Format) -> None:
    golden.check(SHOWN / file_name(recipe, format), render(recipe, format))


def test_containers_recipes_holds_nothing_else() -> None:
    assert {path.stem for path in SHOWN.iterdir()} == RECIPES.keys()


def test_one_format_after_the_other_changes_nothing() -> None:
    """hpccm keeps its format, distribution and architecture in globals."""
    first = render(CPU, "docker")
    render(PYTORCH, "singularity")
    assert render(CPU, "docker") == first


def test_a_dockerfile_begins_with_a_registrys_image() -> None:
    with pytest.raises(SettingsError, match="a Dockerfile begins with a registry's image"):
        render(dataclasses.replace(CPU, base="/sandboxes/debian"), "docker")


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"no image recipe pytroch \(pytorch, .*did you mean pytorch\?"):
        find("pytroch")


def test_nothing_heavy_is_imported_until_something_is_rendered() -> None:
    text = "import sys, containers.image_recipes, containers.runtimes, containers.catalogue, containers.pull; "
    text += "print({'hpccm', 'yaml', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.testbed
@pytest.mark.slow
def test_both_formats_build_for_real_into_the_same_packages(place: Place, testbed: Testbed) -> None:
    """The recipe of the CPU image on the testbed's own Debian, with packages that are there already."""
    pins = ("first-example==1.2.3", "second-example==4.5")
    for pin in pins:
        make_wheel(place.folder / "wheels", *pin.split("=="))
    recipe = dataclasses.replace(CPU, pip=pins, index="")
    image = testbed.images["python"]
    name, built = f"{place.folder.name}:cpu", str(place.folder / "cpu")

    builds = []
    formats: tuple[tuple[Format, str, list[str]], ...] = (
        ("docker", image.docker, ["docker", "build", "--network=host", "--quiet", f"--tag={name}", ".", "--file"]),
        # Packing it would take longest.
        ("singularity", image.sif, ["apptainer", "build", "--fakeroot", "--sandbox", built]),
    )
    for format, base, argv in formats:
        of_base = dataclasses.replace(recipe, base=base)
        file = place.write(file_name(of_base, format), offline(render(of_base, format)), mode=0o644)
        builds.append([*argv, str(file)])
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


def offline(text: str) -> str:
    """A rendered file that installs from the folder `wheels` alone."""
    text = text.replace("pip install ", "pip install --no-index --find-links=/opt/wheels ")
    if "\n%post" in text:
        return f"{text}\n%files\n    wheels /opt/wheels\n"
    return text.replace("\nLABEL ", "\nCOPY wheels /opt/wheels\nLABEL ")


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A package with nothing in it."""
    folder.mkdir(exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(f"{stem}.dist-info/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")),
    }
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, text in info.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)


def run(argv: Sequence[str], place: Place) -> str:
    """A command as the testbed's user, in the place's folder."""
    argv = place.testbed.as_user(argv, {"DOCKER_BUILDKIT": "0"})
    ended = subprocess.run(argv, cwd=place.folder, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    return ended.stdout


@FORMATS
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_run_line_starts_what_the_build_line_makes(name: str, format: Format) -> None:
    image = {"docker": f" container=docker image={name} ", "singularity": f" container=apptainer image=./{name}.sif "}
    for line in render(RECIPES[name], format).splitlines():
        if line.startswith("# Run: python -m launcher"):
            assert image[format] in line
        elif line.startswith("# Run: "):
            assert format == "docker" and line.startswith("# Run: docker run ")
