"""A stand-in for `nvidia-smi`, at the process boundary: it answers the queries asked of it as the driver's own does."""

from __future__ import annotations

import contextlib
import shutil
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

from launcher import gpus

# Answers from files beside itself, so that what it says can change while a run waits.
_PROGRAM = """#!{python} -S
import pathlib, sys
here = pathlib.Path(__file__).parent
fields = sys.argv[1].partition("=")[2].split(",")
units = "nounits" in sys.argv[2]
if "--query-gpu" in sys.argv[1]:
    for index, line in enumerate((here / "gpus").read_text().splitlines()):
        uuid, used, display = line.split()
        known = {{
            "index": str(index), "uuid": uuid, "name": "Tesla V100-SXM2-32GB", "compute_cap": "7.0",
            "memory.used": used if units else used + " MiB", "display_active": display,
            "memory.total": "32768" if units else "32768 MiB", "driver_version": "560.35.03",
        }}
        print(", ".join(known.get(each, "[N/A]") for each in fields))
elif "--query-compute-apps" in sys.argv[1]:
    for line in (here / "processes").read_text().splitlines():
        uuid, pid, name = line.split(" ", 2)
        print(", ".join({{"gpu_uuid": uuid, "pid": pid, "process_name": name}}[each] for each in fields))
else:
    sys.exit(f"Invalid combination of input arguments: {{sys.argv[1:]}}")
"""


class FakeGpus(NamedTuple):
    """A folder for the PATH, with a `nvidia-smi` that knows so many GPUs of names that nothing else has."""

    folder: Path
    uuids: tuple[str, ...]

    def use(self, index: int, mib: int, display: str = "Disabled") -> None:
        """So much memory of a GPU is in use."""
        lines = (self.folder / "gpus").read_text().splitlines()
        lines[index] = f"{self.uuids[index]} {mib} {display}"
        (self.folder / "gpus").write_text("\n".join(lines) + "\n")

    def put(self, index: int, pid: int, name: str) -> None:
        """A process is on a GPU."""
        with open(self.folder / "processes", "a") as stream:
            stream.write(f"{self.uuids[index]} {pid} {name}\n")

    def leave(self) -> None:
        """No process is on any."""
        (self.folder / "processes").write_text("")

    def locks(self) -> list[Path]:
        """Their lock files, as far as there are any."""
        found = (Path(folder, f"{gpus.NAME}-{each}") for folder in gpus.FOLDERS for each in self.uuids)
        return [each for each in found if each.exists()]

    def close(self) -> None:
        for each in self.locks():
            with contextlib.suppress(FileNotFoundError):
                each.unlink()


def make(folder: Path, count: int) -> FakeGpus:
    folder.mkdir()
    made = FakeGpus(folder, tuple(f"GPU-{uuid.uuid4()}" for _ in range(count)))
    (folder / "gpus").write_text("".join(f"{each} 4 Disabled\n" for each in made.uuids))
    made.leave()
    program = folder / "nvidia-smi"
    # Any user has to be able to run it, and not everybody may look into an environment's folder.
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    program.write_text(_PROGRAM.format(python=python))
    program.chmod(0o755)
    return made
