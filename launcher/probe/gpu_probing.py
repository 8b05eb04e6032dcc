"""The GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from launcher.probe import gpu_names
from launcher.probe.facts import Gpu

FIELDS = ("index", "uuid", "name", "memory.total", "driver_version", "compute_cap", "mig.mode.current")
YOUNG = ("compute_cap", "mig.mode.current")
"""Fields that a driver may be too old for: it answers none of the others then. 470 has no compute_cap yet."""
_UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field')
_SECONDS = 60


def listed() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of this machine, and why they could not be listed where there is a driver that should have."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    fields = list(FIELDS)
    while True:
        try:
            done = subprocess.run(
                ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return (), f"nvidia-smi did not answer within {_SECONDS} s"
        except OSError as error:
            return (), f"nvidia-smi can't be run: {error.strerror}"
        said = (done.stdout + done.stderr).decode(errors="replace")
        unknown = _UNKNOWN.search(said)
        if done.returncode != 0 and unknown and unknown[1] in fields and unknown[1] in YOUNG:
            fields.remove(unknown[1])
            continue
        if done.returncode != 0:
            return (), f"nvidia-smi failed: {' '.join(said.split())}"
        return parse(said.splitlines(), fields), ""


def with_holders(found: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The same GPUs, with who is on them."""
    from launcher.probe import gpu_locks

    holders = {each.uuid: each.holder for each in gpu_locks.look()} if found else {}
    return tuple(dataclasses.replace(gpu, holder=holders.get(gpu.uuid, "")) for gpu in found)


def parse(lines: Iterable[str], fields: Sequence[str]) -> tuple[Gpu, ...]:
    """GPUs from the lines that nvidia-smi prints for these fields. What it does not tell stands in square brackets."""
    found = []
    for line in lines:
        cells = [each.strip() for each in line.split(",")]
        if len(cells) != len(fields) or not cells[0].isdigit():
            continue
        told = dict(zip(fields, cells, strict=True))
        memory, partitioned = told["memory.total"], told.get("mig.mode.current") == "Enabled"
        found.append(
            Gpu(
                index=int(told["index"]),
                uuid=told["uuid"],
                name=told["name"],
                memory_mib=int(memory) if memory.isdigit() and not partitioned else 0,
                capability=_capability(told.get("compute_cap", ""), told["name"]),
                driver=told["driver_version"],
                partitioned=partitioned,
            )
        )
    return tuple(found)


def _capability(told: str, name: str) -> str:
    """As `8.0`, from the name where the driver does not tell; empty where that doesn't either."""
    if re.fullmatch(r"\d+\.\d+", told):
        return told
    known = gpu_names.of_name(name)
    return f"{known[0]}.{known[1]}" if known else ""
