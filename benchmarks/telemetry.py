"""The share of a core that a run's telemetry takes: run.sh's sampler at a rate high enough to measure."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

from benchmarks.measure import Measured, Timing
from launcher import bash_files
from launcher.config.schema import Telemetry
from launcher.script import telemetry

ROUNDS, SECONDS, PAUSE = 5, 1.0, 0.002
SHARE = 0.005


def cost(folder: Path) -> Measured:
    """CPU seconds of one sample of the host, against the share of a core that sampling may take in its usual pace.

    nvidia-smi, where there is one, is a process of NVIDIA's and not counted.
    """
    sampled = tuple(_sample(folder / str(number)) for number in range(ROUNDS))
    allowed = SHARE * Telemetry().every
    return Measured(
        claim="telemetry takes at most 0.5% of a core",
        limit=1.0,
        timings={
            "a sample of the host, CPU time": Timing(seconds=sampled),
            "0.5% of a core between two samples": Timing(seconds=(allowed,) * ROUNDS),
        },
        note=f"one sample every {Telemetry().every} s unless telemetry.every says otherwise; without nvidia-smi",
    )


def _sample(folder: Path) -> float:
    """CPU seconds a sample of a sampler that runs for a while, its start and end included."""
    folder.mkdir()
    functions = bash_files.text("launcher.script", "telemetry.sh")
    values = f"LAUNCHER_RUN={folder} LAUNCHER_ATTEMPT=1 LAUNCHER_SHARED="
    values += f" LAUNCHER_TELEMETRY_EVERY={PAUSE} LAUNCHER_TELEMETRY_GPUS="
    script = f"set -u; {values}\n{functions}\nsleep {SECONDS} | telemetry"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["bash", "-c", script], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (host,) = telemetry.read(folder).hosts
    return seconds / len(host.times)
