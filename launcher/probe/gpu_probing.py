"""The GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from launcher.probe import gpu_names
from launcher.probe.facts import INDEX, Gpu

_FIELDS = ("index", "uuid", "name", "memory.total", "driver_version")
QUERIES = ((*_FIELDS, "compute_cap", "mig.mode.current"), (*_FIELDS, "mig.mode.current"), _FIELDS)
"""For new drivers, up to 470, and up to 418: to a field that it does not know nvidia-smi answers nothing."""
_SECONDS = 60
BUSES = "/proc/driver/nvidia/gpus"


def listed() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of this machine that answer, and why the driver could list none."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    try:
        gpus, problem = _ask()
        if problem:  # one that fell off the bus makes a question about all fail
            gpus = tuple(gpu for bus in _buses() for gpu in _ask(f"--id={bus}")[0])
    except subprocess.TimeoutExpired:
        return (), f"nvidia-smi did not answer within {_SECONDS} s"
    except OSError as error:
        return (), f"nvidia-smi can't be run: {error.strerror}"
    return gpus, "" if gpus else problem


def _ask(*which: str) -> tuple[tuple[Gpu, ...], str]:
    for fields in QUERIES:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *which],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
        output = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode == 0:
            return parse(output.splitlines(), fields), ""
        if "is not a valid field" not in output:
            break
    return (), f"nvidia-smi failed: {' '.join(output.split())}"


def _buses() -> list[str]:
    """The addresses on the bus of the GPUs that the kernel's module knows, one that was lost among them."""
    try:
        return sorted(os.listdir(BUSES))
    except OSError:  # as in WSL
        return []


def with_holders(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The same GPUs, with their holders and faults, and those that do not answer."""
    from launcher.probe import gpu_locks

    known = {gpu.uuid: gpu for gpu in gpus}
    for seen in gpu_locks.states() if gpus else ():
        gpu = known.get(seen.uuid) or dataclasses.replace(seen, driver=gpus[0].driver)
        known[seen.uuid] = dataclasses.replace(gpu, holder=seen.holder, fault=seen.fault)
    return tuple(sorted(known.values(), key=lambda gpu: gpu.index))


def parse(lines: Iterable[str], fields: Sequence[str]) -> tuple[Gpu, ...]:
    """GPUs from the lines that nvidia-smi prints for these fields. Unknown values are in square brackets."""
    gpus = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields) or not INDEX.fullmatch(cells[0]):
            continue
        values = dict(zip(fields, cells, strict=True))
        memory, partitioned = values["memory.total"], values.get("mig.mode.current") == "Enabled"
        gpus.append(
            Gpu(
                index=int(values["index"]),
                uuid=values["uuid"],
                name=values["name"],
                memory_mib=int(memory) if INDEX.fullmatch(memory) and not partitioned else 0,
                capability=_capability(values.get("compute_cap", ""), values["name"]),
                driver=values["driver_version"],
                partitioned=partitioned,
            )
        )
    return tuple(gpus)


def _capability(values: str, name: str) -> str:
    """As `8.0`, from the name if the driver does not give it; empty if unknown."""
    if re.fullmatch(r"\d+\.\d+", values):
        return values
    known = gpu_names.of_name(name)
    return f"{known[0]}.{known[1]}" if known else ""
