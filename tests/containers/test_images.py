from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers.image_recipes import RECIPES, SUFFIXES, Format, text
from tests.containers.real import Place
from tests.testbed.facts import Testbed

SHOWN = Path(__file__).parents[2] / "containers" / "recipes"
FORMATS = pytest.mark.parametrize("format", ["docker", "singularity"])


def test_containers_recipes_holds_each_recipe_in_both_formats_and_nothing_else() -> None:
    named = {f"{name}.{suffix}" for name in RECIPES for suffix in SUFFIXES.values()}
    assert {path.name for path in SHOWN.iterdir()} == named


@pytest.mark.parametrize("name", RECIPES)
def test_both_formats_of_a_recipe_begin_with_one_image_and_run_the_same_lines(name: str) -> None:
    docker, singularity = text(name, "docker"), text(name, "singularity")
    assert re.findall("^FROM (.+)$", docker, re.M) == re.findall("^From: (.+)$", singularity, re.M)
    ran = re.sub(r"\\\n|&&|^RUN |^(#|FROM|LABEL).*$", " ", docker, flags=re.M).split()
    written = re.sub(
        r"\\\n|^(#|BootStrap|From).*$|^%labels\n.*$|^%post\n( +(cd /|\. /\.sing.*)$)?", " ", singularity, flags=re.M
    )
    assert ran == written.split()


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"no image recipe pytroch \(pytorch, .*did you mean pytorch\?"):
        text("pytroch", "docker")


@pytest.mark.testbed
@pytest.mark.slow
def test_both_formats_build_for_real_into_the_same_packages(place: Place, testbed: Testbed) -> None:
    """The recipe of the CPU image on the testbed's own Debian, with packages that are there already."""
    pins = ("first-example==1.2.3", "second-example==4.5")
    for pin in pins:
        make_wheel(place.folder / "wheels", *pin.split("=="))
    image = testbed.images["python"]
    name, built = f"{place.folder.name}:cpu", str(place.folder / "cpu")

    builds = []
    formats: tuple[tuple[Format, str, str, list[str]], ...] = (
        (
            "docker",
            "FROM .*",
            f"FROM {image.docker}",
            ["docker", "build", "--network=host", "--quiet", f"--tag={name}", "."],
        ),
        # Packing it would take longest.
        (
            "singularity",
            r"BootStrap: docker\nFrom: .*\n%post\n.*",
            f"BootStrap: localimage\nFrom: {image.sif}",
            ["apptainer", "build", "--fakeroot", "--sandbox", built],
        ),
    )
    for format, base, ours, argv in formats:
        recipe = re.sub(f"^{base}$", ours, text("cpu", format), count=1, flags=re.M)
        recipe = re.sub(r"--extra-index-url .*", " ".join(pins), recipe)
        file = place.write(f"cpu.{SUFFIXES[format]}", offline(recipe), mode=0o644)
        builds.append([*argv, *(["--file"] if format == "docker" else []), str(file)])
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


def offline(recipe: str) -> str:
    """A recipe that installs from the folder `wheels` alone."""
    recipe = recipe.replace("pip install ", "pip install --no-index --find-links=/opt/wheels ")
    if "\n%post" in recipe:
        return f"{recipe}\n%files\n    wheels /opt/wheels\n"
    return recipe.replace("\nLABEL ", "\nCOPY wheels /opt/wheels\nLABEL ")


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
@pytest.mark.parametrize("name", RECIPES)
def test_the_run_line_starts_what_the_build_line_makes(name: str, format: Format) -> None:
    image = {"docker": f" container=docker image={name} ", "singularity": f" container=apptainer image=./{name}.sif "}
    for line in text(name, format).splitlines():
        if line.startswith("# Run: python -m launcher"):
            assert image[format] in line
        elif line.startswith("# Run: "):
            assert format == "docker" and line.startswith("# Run: docker run ")
