"""The values of `image=`: a catalogue name, a registry reference, a digest, a file, a sandbox folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from amp_launcher.typed import SettingsError, nearest
from launcher.containers import catalogue
from launcher.containers.catalogue import Release
from launcher.containers.runtime import Kind

Form = Literal["registry", "sif", "squashfs", "sandbox"]

_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
# As the distribution specification has it: [REGISTRY[:PORT]/]PATH[:TAG][@DIGEST].
_REFERENCE = re.compile(
    rf"(?:(?P<registry>(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w.-]+:\d+|localhost:\d+))[/#])?"
    rf"(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)
_SUFFIXES: dict[str, Form] = {".sif": "sif", ".simg": "sif", ".sqsh": "squashfs", ".squashfs": "squashfs"}
_HUB = "docker.io"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image as it was named."""

    given: str
    form: Form
    registry: str = ""
    repository: str = ""
    tag: str = ""
    digest: str = ""
    path: str = ""
    """Of a file or folder; may be relative, or start with `~`."""
    release: Release | None = None
    """Where it is one of the catalogue's."""

    @property
    def reference(self) -> str:
        """The full name in its registry: by digest if there is one, which a tag can't contradict."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{version}"


def resolve(given: str) -> Image:
    """The image that a name means. Raises `SettingsError` for what can't be one."""
    if not given:
        raise SettingsError("image= is empty; name an image, as image=ngc-pytorch")
    text = given.removeprefix("docker://")
    for suffix, form in _SUFFIXES.items():
        if text.endswith(suffix):
            return Image(given=given, form=form, path=text)
    if text.startswith(("/", "./", "../", "~")):
        return Image(given=given, form="sandbox", path=text)
    release = None
    if text.startswith("ngc-"):
        release = catalogue.find(text)
        text = release.reference
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"image={given} is neither a name of the catalogue ({', '.join(catalogue.lines())}), a registry's image "
            f"such as nvcr.io/nvidia/pytorch:25.06-py3, nor a .sif, .sqsh or folder{nearest(given, catalogue.lines())}"
        )
    registry, repository, tag, digest = (match[group] or "" for group in ("registry", "repository", "tag", "digest"))
    if not registry:
        registry, repository = _HUB, repository if "/" in repository else f"library/{repository}"
    if not tag and not digest:
        tag = "latest"
    return Image(
        given=given,
        form="registry",
        registry=registry,
        repository=repository,
        tag=tag,
        digest=digest,
        release=release or catalogue.of_reference(f"{registry}/{repository}:{tag}"),
    )


OTHER = "other"
"""The value of `image.is` for an image that is not in the catalogue."""


def release_of(given: str | None, declared: str | None) -> Release | None:
    """The catalogue release of an image, by its name or by `image.is`.

    `given` is None where a job runs in a container already. Raises `SettingsError` where the two differ.
    """
    by_name = resolve(given).release if given else None
    if declared is None:
        return by_name
    release = None if declared == OTHER else catalogue.find(declared, "image.is")
    if by_name is not None and by_name != release:
        raise SettingsError(f"image.is={declared}, and image={given} is {by_name.name} by its name; leave image.is out")
    return release


def local_name(image: Image, kind: Kind, stored: str = "") -> str:
    """The image's name for a runtime of this kind. `stored` is where `image pull` put it, for runtimes of image files.

    Paths have to be absolute by now. Raises `SettingsError` where the runtime can't run an image of that form.
    """
    if kind in ("docker", "podman"):
        if image.form != "registry":
            raise SettingsError(
                f"image={image.given}: {kind} runs images of a registry; for this one say container=apptainer"
            )
        # A name without a registry stays as it is: the engine may have a local image of that name.
        bare = "/" not in image.given.partition("@")[0] and not image.release
        return image.given.removeprefix("docker://") if bare else image.reference
    if kind == "apptainer":
        if image.form == "squashfs":
            raise SettingsError(f"image={image.given}: enroot's .sqsh has no environment; say container=pyxis")
        return stored if image.form == "registry" and stored else image.path or f"docker://{image.reference}"
    if kind == "pyxis":
        if image.form in ("sif", "sandbox"):
            raise SettingsError(
                f"image={image.given}: pyxis runs registry images and .sqsh files; say container=apptainer"
            )
        if image.path:
            return image.path
        if image.digest:
            raise SettingsError(f"image={image.given}: enroot fetches by tag; name one instead of the digest")
        # Without the '#', enroot takes the registry for a part of a path on Docker Hub.
        name = f"{image.repository}:{image.tag}"
        return name if image.registry == _HUB else f"{image.registry}#{name}"
    return ""
