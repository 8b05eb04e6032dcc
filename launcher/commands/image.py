"""`image`: list, show, render and pull container images."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from amp_launcher.typed import SettingsError, nearest, not_a_choice
from launcher.config.paths import expanded
from launcher.config.schema import Container
from launcher.containers import catalogue, find, image_recipes, preflight, programs, references
from launcher.containers.catalogue import Release
from launcher.errors import Unavailable, UsageError, of_settings
from launcher.ui.tables import pairs, table

_RECIPES = ", ".join(image_recipes.RECIPES)
HELP = f"""\
Container images: the catalogue, recipes to build one, and images for Apptainer.

usage: python -m launcher image list [LINE]
       python -m launcher image show IMAGE
       python -m launcher image render RECIPE [format=docker|singularity]
       python -m launcher image pull IMAGE [container.cache=FOLDER]

IMAGE is a name of the catalogue (ngc-pytorch, ngc-pytorch:25.06), a registry's image, or one by digest. `pull`
downloads it for Apptainer once, also when several ask at the same time. Docker and podman pull by themselves: `show`
has the reference.
RECIPE is one of this project's recipes: {_RECIPES}. `render` prints a
Dockerfile or a Singularity definition, which begins with the command that builds it and is yours to add to.
"""

KEYS: dict[str, tuple[str, ...]] = {
    "list": (),
    "show": (),
    "render": ("format",),
    "pull": ("container", "container.cache"),
}
"""The actions of `image`, and the keys of each."""


def main(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if "=" not in word]
    options = dict(word.split("=", 1) for word in arguments if "=" in word)
    if not words:
        print(HELP, end="")
        return 2
    verbs = {"list": _list, "show": _show, "render": _render, "pull": _pull}
    if words[0] not in verbs:
        raise UsageError(f"image {words[0]} is not one of {', '.join(verbs)}{nearest(words[0], verbs)}")
    known = KEYS[words[0]]
    for key in options:
        if key not in known:
            raise UsageError(f"{key}= has no meaning here ({', '.join(known) or 'there are no keys'})")
    with of_settings():
        return verbs[words[0]](words[1:], options)


def _list(names: Sequence[str], options: dict[str, str]) -> int:
    for name in names:
        if name not in catalogue.lines():
            raise UsageError(f"no {name} in the catalogue ({', '.join(catalogue.lines())})")
    chosen = [release for release in catalogue.releases() if not names or release.line in names]
    header = ["image", "framework", "CUDA", "Python", "driver", "last"]
    print("\n".join(table(header, [_row(release) for release in chosen])))
    return 0


def _row(release: Release) -> list[str]:
    framework = f"{release.framework} {release.version}"
    return [release.name, framework, release.cuda, release.python, release.driver, "last" if release.last else ""]


def _show(names: Sequence[str], options: dict[str, str]) -> int:
    image = references.resolve(_one(names, "show"))
    rows = [("image", image.given), ("form", image.form)]
    rows.append(("path", image.path) if image.path else ("reference", image.reference))
    if image.path and not os.path.exists(expanded(image.path)):
        raise UsageError(f"image={image.given}: there is no such file or folder here")
    release = image.release
    if release is not None:
        older = ", ".join(release.data_centre_drivers or ()) or "not documented"
        rows += [
            ("framework", f"{release.framework} {release.version}"),
            ("Python", release.python),
            ("CUDA", release.cuda),
            ("driver", f"{release.driver} or newer; on data-centre GPUs also from: {older}"),
            ("DLProf", "in it" if release.dlprof else "not in it"),
            ("last of its line", "yes" if release.last else "no"),
            ("source", release.source),
        ]
    print("\n".join(pairs(rows)))
    return 0


def _render(names: Sequence[str], options: dict[str, str]) -> int:
    print(image_recipes.text(_one(names, "render"), _format(options.get("format", "docker"))), end="")
    return 0


def _format(text: str) -> image_recipes.Format:
    for format in image_recipes.SUFFIXES:
        if format == text:
            return format
    raise SettingsError(not_a_choice("format", text, image_recipes.SUFFIXES), "format")


def _pull(names: Sequence[str], options: dict[str, str]) -> int:
    from launcher.containers import pull

    image = references.resolve(_one(names, "pull"))
    runtime = preflight.choose(options.get("container", "apptainer"), find.installed(programs.output))
    try:
        pulled = pull.pull(
            image,
            runtime,
            expanded(options.get("container.cache", Container().cache)),
            architecture=find.architecture(programs.output),
            say=lambda line: print(line, file=sys.stderr),
        )
    except pull.PullError as error:
        raise Unavailable(str(error)) from None
    print(pulled.name)
    print(f"{'fetched' if pulled.fetched else 'was there'}: {pulled.digest}", file=sys.stderr)
    return 0


def _one(names: Sequence[str], verb: str) -> str:
    if len(names) != 1:
        example = "ngc-pytorch" if verb in ("show", "pull") else image_recipes.RECIPES[0]
        raise UsageError(f"image {verb} takes one image: python -m launcher image {verb} {example}")
    return names[0]
