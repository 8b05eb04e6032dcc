"""A stand-in for `nvidia-smi`, at the process boundary: it answers the queries asked of it as the driver's own does."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

LOCK, LOCK_FOLDERS = "launcher-gpu", ("/run/lock", "/var/tmp", "/tmp")
"""What the lock files of GPUs begin with, and where they may be."""

# Answers from files beside itself, so that what it says can change while a run waits.
_PROGRAM = """#!{python} -S
import pathlib, sys, time
here = pathlib.Path(__file__).parent
options = dict(word.partition("=")[::2] for word in sys.argv[1:])
units = {{"memory.used": "MiB", "memory.total": "MiB", "utilization.gpu": "%", "utilization.memory": "%",
         "power.draw": "W", "clocks.current.sm": "MHz", "clocks.current.memory": "MHz"}}
def cell(name, value):
    return value if name not in units or "nounits" in options["--format"] else value + " " + units[name]
def sample(fields, wanted):
    for index, line in enumerate((here / "gpus").read_text().splitlines()):
        uuid, used, display = line.split()
        known = {{
            "index": str(index), "uuid": uuid, "name": "Tesla V100-SXM2-32GB", "compute_cap": "7.0",
            "memory.used": used, "memory.total": "32768", "display_active": display, "driver_version": "560.35.03",
            "timestamp": time.strftime("%Y/%m/%d %H:%M:%S") + ".123", "utilization.gpu": "93", "power.draw": "212.08",
            "clocks.current.sm": "1530", "clocks.current.memory": "877", "temperature.gpu": "61",
        }}
        if not wanted or str(index) in wanted:
            print(", ".join(cell(field, known.get(field, "[N/A]")) for field in fields), flush=True)
if "--query-gpu" in options:
    fields = options["--query-gpu"].split(",")
    if "noheader" not in options["--format"]:
        print(", ".join(field + (" [" + units[field] + "]" if field in units else "") for field in fields), flush=True)
    wanted = [index for index in options.get("--id", "").split(",") if index]
    sample(fields, wanted)
    while "--loop" in options:
        time.sleep(float(options["--loop"]))
        sample(fields, wanted)
elif sys.argv[1:3] == ["-q", "-x"]:
    print("<nvidia_smi_log>")
    for index, line in enumerate((here / "gpus").read_text().splitlines()):
        uuid, used, display = line.split()
        print(f'<gpu id="00000000:{{index:02X}}:00.0">', f"<display_active>{{display}}</display_active>", sep="\\n")
        print(f"<uuid>{{uuid}}</uuid>", (here / f"report-{{index}}").read_text(), sep="\\n")
        print("<fb_memory_usage>", f"<used>{{used}} MiB</used>", "</fb_memory_usage>", "<processes>", sep="\\n")
        for process in (here / "processes").read_text().splitlines():
            on, pid, name = process.split(" ", 2)
            if on == uuid:
                print("<process_info>", f"<pid>{{pid}}</pid>", "<type>C</type>", sep="\\n")
                print(f"<process_name>{{name}}</process_name>", "</process_info>", sep="\\n")
        print("</processes>", "</gpu>", sep="\\n")
    print("</nvidia_smi_log>")
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

    def report(self, index: int, *lines: str) -> None:
        """What else the driver reports of a GPU, as lines of XML."""
        (self.folder / f"report-{index}").write_text("\n".join(lines))

    def leave(self) -> None:
        """No process is on any."""
        (self.folder / "processes").write_text("")

    def locks(self) -> list[Path]:
        """Their lock files, as far as there are any."""
        paths = (Path(folder, f"{LOCK}-{uuid}") for folder in LOCK_FOLDERS for uuid in self.uuids)
        return [path for path in paths if path.exists()]

    def close(self) -> None:
        for path in self.locks():
            path.unlink(missing_ok=True)


def make(folder: Path, count: int) -> FakeGpus:
    folder.mkdir()
    made = FakeGpus(folder, tuple(f"GPU-{uuid.uuid4()}" for _ in range(count)))
    (folder / "gpus").write_text("".join(f"{name} 4 Disabled\n" for name in made.uuids))
    for index in range(count):
        made.report(index)
    made.leave()
    program = folder / "nvidia-smi"
    # Any user has to be able to run it, and not everybody may look into an environment's folder.
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    program.write_text(_PROGRAM.format(python=python))
    program.chmod(0o755)
    return made
