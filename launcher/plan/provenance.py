"""Which word, file or default set each value of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_launcher.typed import leaves, plain
from launcher.config.schema import TRAINING_KEYS, defaults
from launcher.config.shipped import DECIDES
from launcher.config.spec import JobSpec
from launcher.config.sweep import Cell
from launcher.plan.model import Plan

_DECIDING = {key if group == "recipe" else f"{group}.{key}" for group, key in DECIDES.items()}
"""Keys that are the choice of a file: they are asked for even where they equal the default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """One setting: its value as it will be, and what made it so."""

    key: str
    value: Any
    place: str


def origins(cell: Cell, spec: JobSpec, decided: Mapping[str, Any]) -> list[Origin]:
    """Every setting of a job, in the order of the code that reads them; `decided` is what planning made of them."""
    of_job = {"train": plain(spec.recipe.settings()), "cluster": plain(type(spec.launch.cluster)())}
    baseline = leaves({**defaults(), **of_job})
    places: dict[str, str] = {}
    for file in cell.composed.files:
        for key, value in file.values.items():
            if key in places or key in _DECIDING or value != baseline.get(key):
                places[key] = file.name
    swept = {key for key, _ in cell.swept}
    for word in cell.words:
        if word.kind == "value" and word.prefix != "~":
            for key in leaves({word.key: word.values[0]}):
                places[key] = f"{word.source if word.key not in swept else 'sweep'}: {word.typed}"
    asked_for = {**plain(spec.training), **plain(spec.launch)}
    settled = {**asked_for, **decided}
    if spec.launch.gpus is not None and spec.training.device == "auto":
        places.setdefault("device", f"gpus={spec.launch.gpus}")
    wanted = leaves(asked_for)
    for key in wanted:  # the values of a preset
        if key.startswith("loss_scale.") and wanted[key] != baseline[key] and "loss_scale.preset" in places:
            places.setdefault(key, places["loss_scale.preset"])
    found = "partition" if spec.launch.cluster.kind == "slurm" else "host"
    return [
        Origin(key=key, value=_shown(key, value), place=_place(key, value, wanted.get(key), places, found))
        for key, value in leaves(settled).items()
        if _concerns(key, spec)
    ]


def decided(plan: Plan) -> dict[str, Any]:
    own = {"gpus": plan.gpus, "python": plan.python, "name": plan.name, "run_root": plan.run_root}
    return {**plan.settings, **own, "cluster": plan.cluster}


def _shown(key: str, value: Any) -> Any:
    return "this shell's" if value is None and key.startswith(("env.", "secrets.")) else value


def _concerns(key: str, spec: JobSpec) -> bool:
    """Whether the job's recipe uses the key: a script has its own batch, and other recipes have no script."""
    root = key.split(".")[0]
    if root in ("script", "arguments", "sweep", "include", "inputs", "workdir"):
        return spec.recipe.name == "script"
    return root not in TRAINING_KEYS or spec.recipe.takes is None or root in spec.recipe.takes


def _place(key: str, value: Any, wanted: Any, places: dict[str, str], found: str) -> str:
    names: Sequence[str] = [key, key.removesuffix(".kind"), key.rpartition(".")[0]]
    place = next((places[name] for name in names if name in places), "default")
    if key == "data.name" and place == "default":
        return "the recipe's first"
    if key == "name" and place == "default":
        return "recipe and level" if value != wanted else place
    if key == "cluster.cpus" and value != wanted:
        return "a number for each GPU"
    if place == "default" and value != wanted:
        where = f"found in the {found}" if found == "partition" and key in ("device", "gpus") else "found on the host"
        return where if wanted is None or wanted == "auto" else "default"
    return place
