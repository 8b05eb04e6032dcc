"""The GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterable

from launcher.facts import Gpu

_QUERY = "index,uuid,name,memory.total,compute_cap,driver_version"


def listed() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of this machine, and why they could not be listed where there is a driver that should have."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi did not answer: {error}"
    if done.returncode != 0:
        return (), f"nvidia-smi failed: {(done.stdout + done.stderr).strip()}"
    return _parse(done.stdout.splitlines()), ""


def with_holders(found: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The same GPUs, with who is on them."""
    from launcher import gpus

    holders = {each.uuid: each.holder for each in gpus.look()} if found else {}
    return tuple(dataclasses.replace(gpu, holder=holders.get(gpu.uuid, "")) for gpu in found)


def _parse(lines: Iterable[str]) -> tuple[Gpu, ...]:
    """GPUs from the lines that nvidia-smi prints for the fields asked for here."""
    found = []
    for line in lines:
        fields = [each.strip() for each in line.split(",")]
        if len(fields) == 6:
            index, uuid, name, memory, capability, driver = fields
            found.append(
                Gpu(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    memory_mib=int(memory) if memory.isdigit() else 0,
                    capability=capability,
                    driver=driver,
                )
            )
    return tuple(found)
