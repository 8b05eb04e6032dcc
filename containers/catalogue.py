"""The catalogue of NGC images, which have short names: what each contains and requires.

The table is `ngc.json`, from NVIDIA's documents. `source` is the release notes of the image or, where those do not give
the version, of a release next to it. An image whose version is not documented has no row.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from amp_launcher.typed import SettingsError, nearest

Version = tuple[int, ...]

# The oldest driver for any toolkit of a CUDA version. Sources: NVIDIA, CUDA Compatibility, "Minor Version
# Compatibility"; for 10, the table of drivers in the CUDA Toolkit's release notes.
_LEAST_DRIVER: dict[Version, Version] = {
    **{(10, 1): (418, 39), (10, 2): (440, 33), (11,): (450, 80), (12,): (525, 60), (13,): (580, 65)}
}
# The newest generation of GPUs that a CUDA toolkit makes code for, from this toolkit on, and the oldest that it still
# does. Code for one compute capability runs on all later ones of its major number (NVIDIA, "Ada Compatibility Guide").
_NEWEST_GPU: dict[Version, Version] = {(10, 0): (7,), (11, 0): (8,), (11, 8): (9,), (12, 8): (12,)}
_OLDEST_GPU: dict[Version, Version] = {(10, 0): (3, 0), (11, 0): (3, 5), (12, 0): (5, 0), (13, 0): (7, 5)}
# The first framework that computes in bfloat16 on GPUs.
_BFLOAT16: dict[str, Version] = {"torch": (1, 10), "tensorflow": (2, 4), "paddle": (2, 2)}
CONSUMER = ("GeForce", "TITAN")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One image of the catalogue."""

    line: str
    """The short name, as `ngc-pytorch`."""
    release: str
    """Year and month, as `25.06`."""
    reference: str
    framework: str
    version: str
    python: str
    cuda: str
    driver: str
    """The driver that was released with its CUDA."""
    data_centre_drivers: tuple[str, ...] | None
    """Older driver branches supported on data-centre GPUs, each from this version on; None if not documented."""
    minimum_capability: str | None
    dlprof: bool
    last: bool
    """The last release of its line."""
    source: str

    @property
    def name(self) -> str:
        return f"{self.line}:{self.release}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The requirements of a job and its host on an image. Empty or None is no requirement."""

    framework: str = ""
    version: Version = ()
    """The oldest version of the framework."""
    python: Version = ()
    capability: Version | None = None
    """Of a GPU of the host; check each GPU by itself."""
    driver: str = ""
    data_centre: bool = True
    """Whether the GPUs are data-centre ones, for which NVIDIA supports newer CUDA on older drivers."""
    bfloat16: bool = False
    dlprof: bool = False


def least_driver(cuda: Version) -> Version | None:
    """The oldest driver that this CUDA version runs on without compatibility packages; None if unknown."""
    return _LEAST_DRIVER.get(cuda[:2]) or _LEAST_DRIVER.get(cuda[:1])


def is_data_centre(gpu_name: str) -> bool:
    """Whether a GPU of that name is a data-centre one."""
    return not any(name in gpu_name for name in CONSUMER)


@functools.cache
def releases() -> tuple[Release, ...]:
    """Every image, line by line, oldest first."""
    text = pkgutil.get_data("launcher.containers", "ngc.json")  # which may lie in a zip
    assert text is not None
    table = json.loads(text)
    return tuple(_release(line, release, table) for line, images in table["images"].items() for release in images)


def lines() -> tuple[str, ...]:
    return tuple(dict.fromkeys(release.line for release in releases()))


def find(name: str, key: str = "image") -> Release:
    """The image of `ngc-pytorch`, the newest there is, or of `ngc-pytorch:25.06`. `key` is the setting that has it."""
    line, _, wanted = name.partition(":")
    known = [release for release in releases() if release.line == line]
    if not known:
        raise SettingsError(
            f"{key}={name}: no {line} in the catalogue ({', '.join(lines())}){nearest(line, lines())}", key
        )
    if not wanted:
        return known[-1]
    for release in known:
        if release.release == wanted:
            return release
    raise SettingsError(
        f"{key}={name}: the catalogue has {', '.join(release.release for release in known)} of {line}"
        f"{nearest(wanted, [release.release for release in known])}; any other goes by its full name, "
        f"as {known[-1].reference}",
        key,
    )


def of_reference(reference: str) -> Release | None:
    """The image that a full reference names, if the catalogue has it."""
    return next((release for release in releases() if release.reference == reference), None)


def lacks(image: Release, needs: Needs) -> str:
    """Why the image does not meet the requirements; empty if it does."""
    if needs.framework and image.framework != needs.framework:
        return f"it holds {image.framework}, not {needs.framework}"
    if parse(image.version) < needs.version:
        return f"it has {image.framework} {image.version}, and {_dotted(needs.version)} is needed"
    if parse(image.python) < needs.python:
        return f"it has Python {image.python}, and {_dotted(needs.python)} is needed"
    if needs.dlprof and not image.dlprof:
        return "it has no DLProf, which NVIDIA put into images from 19.09 to 21.12"
    if needs.bfloat16 and parse(image.version) < _BFLOAT16[image.framework]:
        return f"its {image.framework} {image.version} has no bfloat16 on GPUs"
    minimum = parse(image.minimum_capability) if image.minimum_capability else (0,)
    if problem := _gpu_problem(image.cuda, needs.capability, minimum):
        return problem
    return _driver_problem(image, needs) if needs.driver else ""


def check_release(image: Release, needs: Needs, named: str = "") -> None:
    """Refuse an image that does not meet the requirements, and name the nearest release that does. `named` is the
    image as the user gave it."""
    problem = lacks(image, needs)
    if not problem:
        return
    suitable = [release for release in releases() if not lacks(release, needs)]
    same = [release for release in suitable if release.line == image.line]
    near = min(same or suitable, key=lambda near: abs(_months(near.release) - _months(image.release)), default=None)
    if near:
        instead = f"the nearest that would do is image={near.name}"
    else:
        instead = "none in the catalogue would do; give another by its full name, as REGISTRY/NAME:TAG"
    raise SettingsError(f"image={named or image.name}: {problem}; {instead}")


def parse(text: str) -> Version:
    """`2.4.0a0` as (2, 4, 0): NVIDIA's pre-releases count as the release."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", text)[0]))


def cuda_problem(cuda: str, needs: Needs) -> str:
    """Why this CUDA version, as an image outside the catalogue declares it, does not support a GPU or its driver; empty
    if it does."""
    least = least_driver(parse(cuda))
    if problem := _gpu_problem(cuda, needs.capability, (0,)):
        return problem
    if needs.driver and least is not None and parse(needs.driver) < least:
        compatible = " (or NVIDIA's forward compatibility package in it)" if needs.data_centre else ""
        return f"its CUDA {cuda} needs driver {_dotted(least)}{compatible}, and this host has {needs.driver}"
    return ""


def needs_compatibility(cuda: str, needs: Needs, own: str = "") -> bool:
    """Whether this CUDA runs on the driver by NVIDIA's forward compatibility alone; `own` is the driver that came with
    it. Consumer GPUs have none."""
    driver, least = parse(needs.driver), least_driver(parse(cuda)) or parse(own)
    return bool(needs.driver and needs.data_centre) and driver < (min(parse(own), least) if own else least)


def _gpu_problem(cuda: str, capability: Version | None, minimum: Version) -> str:
    if capability is None:
        return ""
    oldest = max(_from(_OLDEST_GPU, parse(cuda)), minimum)
    if capability < oldest:
        return f"it needs compute capability {_dotted(oldest)}, and this GPU has {_dotted(capability)}"
    if capability[:1] > _from(_NEWEST_GPU, parse(cuda)):
        return f"its CUDA {cuda} is older than this GPU of compute capability {_dotted(capability)}"
    return ""


def _driver_problem(image: Release, needs: Needs) -> str:
    driver, own = parse(needs.driver), parse(image.driver)
    floor = least_driver(parse(image.cuda)) or own
    if driver >= min(own, floor):
        return ""
    branches = image.data_centre_drivers
    if needs.data_centre:
        if branches is None or any(driver[0] == parse(branch)[0] and driver >= parse(branch) for branch in branches):
            return ""
        older = f", or {', '.join(branches)} on a data-centre GPU" if branches else ""
    else:
        older = ""
    least = image.driver if own <= floor else _dotted(floor)
    return f"its CUDA {image.cuda} needs driver {least}{older}, and this host has {needs.driver}"


def _from(table: dict[Version, Version], version: Version) -> Version:
    return max((value for start, value in table.items() if start <= version), default=(0,))


def _months(release: str) -> int:
    year, month = parse(release)
    return year * 12 + month


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _release(line: str, release: str, table: dict[str, Any]) -> Release:
    about, shared, own = table["lines"][line], table["releases"][release], table["images"][line][release]
    # The tags of 2019 do not name the TensorFlow version: there was only one.
    tag = f"{release}-py3" if release < "20" else about["tag"].format(release=release)
    branches = shared["data_centre_drivers"]
    return Release(
        line=line,
        release=release,
        reference=f"{about['repository']}:{tag}",
        framework=about["framework"],
        version=own["version"],
        python=own.get("python", shared["python"]),
        cuda=shared["cuda"],
        driver=shared["driver"],
        data_centre_drivers=None if branches is None else tuple(branches),
        minimum_capability=shared["minimum_capability"],
        dlprof=bool(about["dlprof"]) and about["dlprof"][0] <= release <= about["dlprof"][1],
        last=release == about["last"],
        source=own.get("source", shared["source"]),
    )
