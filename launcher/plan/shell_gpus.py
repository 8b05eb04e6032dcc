"""The GPUs that the shell restricts a run to: CUDA_VISIBLE_DEVICES, or what Slurm allocated without confining devices.

Pure. Read as CUDA reads it: numbers, or UUIDs or beginnings of them; the first that is invalid ends the list, one that
is named twice empties it (NVIDIA, CUDA C++ Programming Guide, "CUDA Environment Variables"; torch/cuda/__init__.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from amp_launcher.typed import SettingsError, show
from launcher.config.schema import SlurmCluster
from launcher.config.spec import JobSpec
from launcher.probe.facts import GPU_VARIABLES, Facts, Gpu

CUDA, ORDER, *SLURM = GPU_VARIABLES


def restrict(spec: JobSpec, facts: Facts) -> tuple[Facts, tuple[str, ...]]:
    """The facts with the GPUs that the shell leaves, in its order, and what to say about it. Raises `SettingsError` for
    a list that can't be carried out, and for one that contradicts `visible_gpus`."""
    named = _named(facts.gpu_variables, len(facts.gpus))
    launch = spec.launch
    if named is None or not facts.gpus or isinstance(launch.cluster, SlurmCluster) or spec.training.device == "cpu":
        return facts, ()
    if launch.gpus == 0:
        return facts, ()
    name, value = named
    _check(name, value, facts)
    left = _left(value, facts.gpus)
    if len(left) == len(facts.gpus):
        return dataclasses.replace(facts, gpus=left), ()
    shown = ", ".join(f"GPU {gpu.index}" for gpu in left) or "no GPU"
    others = [index for index in launch.visible_gpus or () if index not in {gpu.index for gpu in left}]
    if others and set(others) <= {gpu.index for gpu in facts.gpus}:
        raise SettingsError(
            f"visible_gpus={show(launch.visible_gpus)} contradicts {name}={value} of this shell, which leaves {shown}; "
            f"name some of these, or unset {name}",
        )
    sentence = f"{name}={value} of this shell leaves {shown} of the {len(facts.gpus)} of {facts.host}"
    if left:
        return dataclasses.replace(facts, gpus=left), (sentence,)
    return dataclasses.replace(facts, gpus=(), gpu_problem=sentence), ()


def _named(variables: Mapping[str, str], count: int) -> tuple[str, str] | None:
    """The variable that restricts, and its value. Where Slurm confines devices, the driver lists the job's alone, and
    CUDA_VISIBLE_DEVICES counts those."""
    if CUDA in variables:
        return CUDA, variables[CUDA]
    for name in SLURM:
        value = variables.get(name, "")
        if value and len(value.split(",")) < count:
            return name, value
    return None


def _check(name: str, value: str, facts: Facts) -> None:
    if value.startswith("MIG-"):
        raise SettingsError(
            f"{name}={value} of this shell names an instance of a GPU, and a run takes whole GPUs; unset it, or say "
            "gpus=0",
            "gpus",
        )
    ordered = name != CUDA or facts.gpu_variables.get(ORDER) == "PCI_BUS_ID"
    if not ordered and not value.startswith("GPU-") and len({gpu.name for gpu in facts.gpus}) > 1 and value:
        raise SettingsError(
            f"{name}={value} of this shell counts the fastest GPU as 0, and those of {facts.host} differ; export "
            f"{ORDER}=PCI_BUS_ID to count as nvidia-smi does, or name them by UUID",
            "gpus",
        )


def _left(value: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    left: list[Gpu] = []
    for word in value.split(","):
        found = _of_uuid(word, gpus) if value.startswith("GPU-") else _of_number(word, gpus)
        if found in left:
            return ()
        if found is None:
            break
        left.append(found)
    return tuple(left)


def _of_number(word: str, gpus: Sequence[Gpu]) -> Gpu | None:
    number = re.match(r"\s*\+?([0-9]{1,9})", word)  # as strtol: what follows the digits is passed over
    return next((gpu for gpu in gpus if number and gpu.index == int(number[1])), None)


def _of_uuid(word: str, gpus: Sequence[Gpu]) -> Gpu | None:
    found = [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None
