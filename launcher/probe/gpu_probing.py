"""The GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import dataclasses
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


def listed() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of this machine, and why the driver could not list them."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    for fields in QUERIES:
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
        output = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode == 0:
            return parse(output.splitlines(), fields), ""
        if "is not a valid field" not in output:
            break
    return (), f"nvidia-smi failed: {' '.join(output.split())}"


def with_holders(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The same GPUs, with their holders."""
    from launcher.probe import gpu_locks

    holders = {gpu.uuid: gpu.holder for gpu in gpu_locks.look()} if gpus else {}
    return tuple(dataclasses.replace(gpu, holder=holders.get(gpu.uuid, "")) for gpu in gpus)


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
