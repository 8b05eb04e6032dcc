"""Container images as recipes: typed values, rendered to a Dockerfile and to a Singularity definition.

hpccm renders them. It ignores unknown keywords and keeps its settings in globals, so only one function calls it.
It writes values unquoted: they are constants of `image_recipes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from amp_launcher.typed import SettingsError
from launcher.containers import references

Format = Literal["docker", "singularity"]
SUFFIXES: dict[Format, str] = {"docker": "Dockerfile", "singularity": "def"}
"""Format -> suffix of a rendered file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRecipe:
    """The content of an image on top of its base. The launcher is not in it: code is mounted at the start."""

    name: str
    summary: str
    """Its purpose, for people."""
    base: str
    """As in `image=`: a catalogue name, a registry reference, or for Singularity a file or folder."""
    distribution: Literal["ubuntu20", "ubuntu22", "ubuntu24", "ubuntu"] = "ubuntu22"
    """Of the base; Debian counts as `ubuntu`."""
    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    """Packages with exact versions, so that pip fails rather than installs another."""
    index: str = ""
    """An additional package index."""
    commands: tuple[str, ...] = ()
    """Shell lines, run as root after everything else."""
    run: dict[str, str] = field(default_factory=dict)
    """Format -> a command that starts the image, shown as a comment."""


def render(recipe: ImageRecipe, format: Format) -> str:
    """The text of a Dockerfile or of a Singularity definition (3.8 or later, and Apptainer)."""
    import hpccm
    from hpccm import building_blocks as blocks
    from hpccm import primitives

    hpccm.config.set_container_format(format)
    hpccm.config.set_singularity_version("3.8")
    stage = hpccm.Stage()
    base, bootstrap = _base(recipe, format)
    stage += primitives.baseimage(
        image=base, _arch="x86_64", _distro=recipe.distribution, _bootstrap=bootstrap, _docker_env=bootstrap == "docker"
    )
    stage += primitives.label(metadata={"org.opencontainers.image.title": recipe.name})
    if recipe.apt:
        stage += blocks.apt_get(ospackages=list(recipe.apt))
    if recipe.pip:
        stage += primitives.shell(commands=[_pip_line(recipe)])
    if recipe.commands:
        stage += primitives.shell(commands=list(recipe.commands))
    return "\n".join([*_title(recipe, format), str(stage).strip(), ""])


def file_name(recipe: ImageRecipe, format: Format) -> str:
    """The file name of a rendered recipe."""
    return f"{recipe.name}.{SUFFIXES[format]}"


def _base(recipe: ImageRecipe, format: Format) -> tuple[str, str]:
    """The base in the format's notation, and Singularity's bootstrap agent."""
    image = references.resolve(recipe.base)
    if image.form == "registry":
        return references.local_name(image, "docker"), "docker"
    if format == "docker":
        raise SettingsError(f"base={recipe.base}: a Dockerfile begins with a registry's image", "base")
    return image.path, "localimage"


def _pip_line(recipe: ImageRecipe) -> str:
    index = f"--extra-index-url {recipe.index} " if recipe.index else ""
    packages = " ".join(f"'{package}'" for package in recipe.pip)
    # Debian and Ubuntu refuse pip outside a virtual environment, which protects nothing in an image.
    return f"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir {index}{packages}"


def _title(recipe: ImageRecipe, format: Format) -> list[str]:
    how = {
        "docker": f"docker build --tag={recipe.name} --file={file_name(recipe, format)} .",
        "singularity": f"apptainer build --fakeroot {recipe.name}.sif {file_name(recipe, format)}",
    }[format]
    lines = [f"# {recipe.name}: {recipe.summary}", f"# Build: {how}"]
    return [*lines, *([f"# Run: {recipe.run[format]}"] if format in recipe.run else []), ""]
