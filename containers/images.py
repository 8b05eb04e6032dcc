"""Container images as recipes: typed values, rendered to a Dockerfile and to a Singularity definition.

hpccm renders them. It ignores unknown keywords, writes values unquoted, and keeps its settings in globals, so
everything is checked before, and only one function calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from containers import references
from recipes.typed import SettingsError, build, not_a_choice, refuse_control_characters

Format = Literal["docker", "singularity"]
SUFFIXES: dict[Format, str] = {"docker": "Dockerfile", "singularity": "def"}
"""Format -> suffix of a rendered file."""

_VALUE = re.compile(r"[\w./:@%+=,$-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(?:=[\w.+:~-]+)?")
_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?==[\w.+!]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)+")
_NAME = re.compile(r"[A-Za-z_]\w*")

# NVIDIA's images since 2025 pin the versions they were tested with in a constraints file of pip.
_EXPLAINED = (
    '|| { test -z "$PIP_CONSTRAINT" || { echo "the base image pins packages in $PIP_CONSTRAINT: ask for the versions'
    ' named there, or take a base without it. Of these packages it says:"; grep -iE "^(%s) *[=<>]" "$PIP_CONSTRAINT"'
    " || echo nothing; } >&2; exit 1; }"
)


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
    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    """Packages with exact versions, so that pip fails rather than installs another."""
    index: str = ""
    """An additional package index."""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Path below the build folder -> absolute path in the image."""
    labels: dict[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    """Shell lines, run as root after everything else."""
    ucx: str = ""
    """Version of UCX to build, or none."""
    openmpi: str = ""
    """Version of Open MPI to build, or none; uses the recipe's UCX."""
    cuda: bool = True
    """Whether MPI and UCX are built for CUDA."""
    run: dict[str, str] = field(default_factory=dict)
    """Format -> a command that starts the image, shown as a comment."""


def from_mapping(values: Mapping[str, Any]) -> ImageRecipe:
    """A recipe from the values of a file. Raises `SettingsError` for unknown fields and invalid values."""
    for name in ("name", "summary", "base"):
        if name not in values:
            raise SettingsError(f"an image recipe needs {name}", name)
    recipe = build(ImageRecipe, values)
    check(recipe)
    return recipe


def check(recipe: ImageRecipe) -> None:
    """Refuse values that would be rendered wrongly."""
    _matching("name", [recipe.name], re.compile(r"[a-z0-9][a-z0-9-]*"), "letters, digits and dashes")
    _matching("apt", recipe.apt, _PACKAGE, "a package, as openssh-server, or one with its version, as git=1:2.39.2-1")
    _matching("pip", recipe.pip, _PINNED, "a package with its exact version, as numpy==1.26.4")
    _matching("index", [recipe.index] if recipe.index else [], re.compile(r"https?://[\w./:@%+-]+"), "an address")
    for key in ("ucx", "openmpi"):
        version = getattr(recipe, key)
        _matching(key, [version] if version else [], _NUMBER, "a version, as 1.15.0")
    for key, mapping in (("environment", recipe.environment), ("labels", recipe.labels)):
        _matching(key, mapping, _NAME if key == "environment" else re.compile(r"[A-Za-z][\w.-]*"), "a name")
        for name, value in mapping.items():
            _matching(f"{key}.{name}", [value], _VALUE, "letters, digits and ./:@%+=,$_-")
    for source, target in recipe.files.items():
        plain = _VALUE.fullmatch(source) and _VALUE.fullmatch(target) and "$" not in source + target
        if not plain or source.startswith("/") or ".." in source.split("/") or not target.startswith("/"):
            raise SettingsError(
                f"files.{source}={target} should be a path below the folder, and an absolute one", "files"
            )
    for format in recipe.run:
        if format not in SUFFIXES:
            raise SettingsError(not_a_choice("run", format, SUFFIXES), "run")
    for line in (recipe.summary, *recipe.run.values(), *recipe.commands):
        refuse_control_characters("commands", line)
    base = references.resolve(recipe.base)
    if base.path and not base.path.startswith("/"):
        raise SettingsError(f"base={recipe.base} should be absolute", "base")


def render(recipe: ImageRecipe, format: Format) -> str:
    """The text of a Dockerfile or of a Singularity definition (3.8 or later, and Apptainer)."""
    check(recipe)
    import hpccm
    from hpccm import building_blocks as blocks
    from hpccm import primitives

    hpccm.config.set_container_format(format)
    hpccm.config.set_singularity_version("3.8")
    stage = hpccm.Stage()
    base, bootstrap = _base(recipe, format)
    stage += primitives.baseimage(
        image=base,
        _arch=recipe.architecture,
        _distro=recipe.distribution,
        _bootstrap=bootstrap,
        _docker_env=bootstrap == "docker",
    )
    if recipe.labels:
        stage += primitives.label(metadata=dict(recipe.labels))
    if recipe.environment:
        stage += primitives.environment(variables=dict(recipe.environment))
    if recipe.apt:
        stage += blocks.apt_get(ospackages=list(recipe.apt))
    if recipe.ucx:
        stage += blocks.ucx(version=recipe.ucx, cuda=recipe.cuda)
    if recipe.openmpi:
        stage += blocks.openmpi(
            version=recipe.openmpi,
            cuda=recipe.cuda,
            infiniband=False,
            ucx="/usr/local/ucx" if recipe.ucx else False,
        )
    if recipe.files:
        stage += primitives.copy(files=dict(recipe.files))
    if recipe.pip:
        stage += primitives.shell(commands=[_pip_line(recipe)])
    if recipe.commands:
        stage += primitives.shell(commands=list(recipe.commands))
    return "\n".join([*_title(recipe, format), str(stage).strip(), ""])


def file_name(recipe: ImageRecipe, format: Format) -> str:
    """The file name of a rendered recipe."""
    return f"{recipe.name}.{SUFFIXES[format]}"


def build_argv(
    format: Format,
    *,
    client: Sequence[str],
    options: Sequence[str] = (),
    file: str,
    folder: str,
    target: str,
) -> tuple[str, ...]:
    """The command that builds a rendered file, to be run in `folder`, which has the recipe's `files`."""
    if format == "docker":
        return (*client, "build", *options, f"--tag={target}", f"--file={file}", folder)
    return (*client, "build", "--fakeroot", *options, target, file)


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
    # pip treats -, _ and . in a name as equal.
    names = "|".join(re.sub(r"[-_.]+", "[-_.]+", re.split(r"[\[=]", package)[0]) for package in recipe.pip)
    install = f"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir {index}{packages}"
    return f"{install} {_EXPLAINED % names}"


def _title(recipe: ImageRecipe, format: Format) -> list[str]:
    how = {
        "docker": f"docker build --tag={recipe.name} --file={file_name(recipe, format)} .",
        "singularity": f"apptainer build --fakeroot {recipe.name}.sif {file_name(recipe, format)}",
    }[format]
    lines = [f"# {recipe.name}: {recipe.summary}", f"# Build: {how}"]
    return [*lines, *([f"# Run: {recipe.run[format]}"] if format in recipe.run else []), ""]


def _matching(key: str, values: Any, pattern: re.Pattern[str], what: str) -> None:
    for value in values:
        if not pattern.fullmatch(value):
            raise SettingsError(f"{key}: {value} should be {what}", key)
