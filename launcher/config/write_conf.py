"""Writes `conf/` from the settings classes: every key with its default, its choices and its help as a comment.

`make conf` runs it; a test holds the files equal to it. Experiments, which are requests, are written by hand.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from amp_launcher.precision.levels import LEVELS, MODES, NO_CLAIM, PRESETS, Amp, Framework, LossScale, Name
from amp_launcher.precision.support import support_for
from amp_launcher.recipe import NAMES, find
from amp_launcher.settings import Profile, Settings
from amp_launcher.typed import fields_of, is_group, plain
from launcher.config.paths import conf_folder
from launcher.config.schema import CLUSTERS, Container, Launch
from launcher.config.shipped import CONFIG, DECIDES, class_of, defaults_of

WIDTH = 120
ENGINE_LIMITS = {"memlock": -1, "stack": 64 * 2**20}
"""Bytes; -1 is no limit. What NVIDIA's images ask of Docker and podman."""
CHOSEN = {
    "amp": "o1",
    "loss_scale": "auto",
    "recipe": "mnist",
    "cluster": "local",
    "container": "none",
    "profile": "none",
}
"""The files that hold where nothing is asked for; of data and experiments there is none."""
_CONFIG = """\
Defaults of every job. `python -m launcher run --help` lists the same keys; `plan` shows what set each value.

Copy this file to ~/.config/amp-launcher/config.yaml, or to a folder named by --config-dir or LAUNCHER_CONFIG_DIR, and
keep or edit any lines. A value that is its default asks for nothing. Each of these wins over those before it: this
file, your config.yaml, the files chosen from groups, an experiment, the command line."""
_DEFAULTS = """\
defaults:
  - _self_ # the files chosen here win over the keys below
{choices}
  - data: null # null is the recipe's first data set
  - experiment: null
"""


def files() -> dict[str, str]:
    """The text of each file, by its path in `conf/` without `.yaml`."""
    names: dict[str, Iterable[str]] = {
        "amp": (*LEVELS, *MODES),
        "loss_scale": PRESETS,
        "recipe": NAMES,
        "data": dict.fromkeys(name for recipe in NAMES for name in find(recipe).data),
        "cluster": CLUSTERS,
        "container": get_args(fields_of(Container)["kind"]),
        "profile": get_args(fields_of(Profile)["tool"]),
    }
    paths = [CONFIG, *(f"{group}/{name}" for group, of_group in names.items() for name in of_group)]
    return {path: text_of(path) for path in paths}


def text_of(path: str) -> str:
    """The text of one file."""
    group, _, name = path.rpartition("/")
    values = defaults_of(path)
    if path == CONFIG:
        choices = "\n".join(f"  - {key}: {choice}" for key, choice in CHOSEN.items())
        head = [*_comment(_CONFIG), *_DEFAULTS.format(choices=choices).splitlines(), ""]
        fields = {**_fields(Settings), **_fields(Launch)}
    elif group == "amp" and name in MODES:
        mode = MODES[name]
        head, fields = list(_comment(_of_mode(name))), _fields(Amp)
        values = plain(Amp(level=mode.level, dtype=mode.dtype, gemm=mode.gemm, preset=name))
        if mode.tf32 is not None:
            head = ["# @package _global_", *head]
            values, fields = {"tf32": mode.tf32, "amp": values}, _fields(Settings)
    elif group == "recipe":
        head = ["# @package _global_", *_comment(_of_recipe(name))]
        fields = {"recipe": (str, ""), "train": (find(name).settings, "hyper-parameters")}
    else:
        cls = LossScale if group == "loss_scale" else class_of(group, name)
        head = list(_comment(_about(group, name, cls)))
        fields = {"preset": (str, "what single keys refine"), **_fields(cls)}
        if name in ("docker", "podman"):
            values["limits"] = ENGINE_LIMITS
        decides = DECIDES[group]
        values = {decides: values.pop(decides), **values}
    return "\n".join([*head, *_keys(values, fields)]) + "\n"


def _of_mode(name: Name) -> str:
    if name == NO_CLAIM:
        return "none: a script without a mode, as for preprocessing; nothing is applied to it, and nothing observed"
    mode = MODES[name]
    dtype = f" in {mode.dtype}" if mode.tf32 is None else f" {'with' if mode.tf32 else 'without'} TF32"
    return f"{name}: {mode.level}{dtype}; {LEVELS[mode.level]}"


def _about(group: str, name: str, cls: type) -> str:
    if group == "amp":
        rows = {framework: support_for(framework, name, "float16", False, "cuda") for framework in get_args(Framework)}
        mechanisms = ", ".join(f"{row.mechanism} in {framework}" for framework, row in rows.items())
        (means,) = (text for level, text in LEVELS.items() if level == name)
        return f"{name}: {means}\nMechanism: {mechanisms}"
    if group == "data":
        layouts = ((recipe, find(recipe).data[name]) for recipe in NAMES if name in find(recipe).data)
        return "\n".join(f"recipe={recipe}: {layout.help}" for recipe, layout in layouts)
    if name in ("docker", "podman"):
        return f"{_doc(cls)}\nThe limits are those that NVIDIA's images ask for; {{}} leaves the engine's own."
    return _doc(cls)


def _of_recipe(name: str) -> str:
    recipe = find(name)
    about = [_doc(recipe.settings), f"framework: {', '.join(recipe.frameworks)}"]
    if recipe.data:
        about.append(f"batch: {recipe.batch} samples and epochs: {recipe.epochs} unless set")
    for data, layout in recipe.data.items():
        own = [f"{key}: {value}" for key, value in (("batch", layout.batch), ("epochs", layout.epochs)) if value]
        about.append(f"data={data}: {layout.help}" + (f" ({', '.join(own)} unless set)" if own else ""))
    return "\n".join(about)


def _doc(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0]


def _fields(cls: Any) -> dict[str, tuple[Any, str]]:
    """The type and the help of each field."""
    helps = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(cls)}
    return {name: (annotation, helps[name]) for name, annotation in fields_of(cls).items()}


def _keys(values: Mapping[str, Any], fields: Mapping[str, tuple[Any, str]], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        annotation, help = fields[name]
        if is_group(annotation):
            yield f"{indent}{name}: # {help}"
            yield from _keys(value, _fields(annotation), f"{indent}  ")
            continue
        if len(choices := _choices(annotation)) > 1:
            help = f"{' | '.join(choices)}: {help}"
        line = f"{indent}{name}: {_yaml(value)}"
        if not help:
            yield line
        elif len(line) + len(help) + 3 <= WIDTH:
            yield f"{line} # {help}"
        else:
            yield from _comment(help, indent)
            yield line


def _choices(annotation: Any) -> list[str]:
    inside = [annotation, *get_args(annotation)]
    return [str(choice) for kind in inside if get_origin(kind) is Literal for choice in get_args(kind)]


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for line in text.splitlines():
        yield from (f"{indent}# {part}".rstrip() for part in textwrap.wrap(line, WIDTH - 2 - len(indent)) or [""])


def _yaml(value: Any) -> str:
    """A default on one line of YAML: JSON, whose texts lose their quotes where YAML needs none."""
    if isinstance(value, str) and value and value.replace("-", "").replace("_", "").isalnum():
        return value
    return json.dumps(value)


def main() -> int:
    for path, text in files().items():
        file = Path(conf_folder(), f"{path}.yaml")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
