"""Stand-ins for Slurm's programs, which note each call."""

from __future__ import annotations

from pathlib import Path

STAND_IN = """#!/bin/sh
[ "$*" = --helpformat ] && exec echo JobID State ExitCode
echo "$(date +%s.%N) ${0##*/}" >>CALLS
cat "FOLDER/${0##*/}.out" 2>/dev/null
exit $(cat "FOLDER/${0##*/}.code" 2>/dev/null || echo 0)
"""


class Cluster:
    """squeue, sacct and scancel that print what a test says and note each call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._calls = folder, folder / "calls"
        folder.mkdir()
        for name in ("squeue", "sacct", "scancel"):
            (folder / name).write_text(STAND_IN.replace("CALLS", str(self._calls)).replace("FOLDER", str(folder)))
            (folder / name).chmod(0o755)

    def says(self, squeue: str = "", sacct: str = "", code: int = 0) -> None:
        (self.folder / "squeue.out").write_text(squeue)
        (self.folder / "squeue.code").write_text(str(code))
        (self.folder / "sacct.out").write_text(sacct)

    def calls(self, name: str = "squeue") -> int:
        return self._calls.read_text().count(name) if self._calls.exists() else 0
