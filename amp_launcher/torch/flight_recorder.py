"""Has NCCL's flight recorder of torch write into the run folder what each rank's collectives did before a timeout.

Source: "ProcessGroupNCCL Environment Variables" in PyTorch's documentation. torch reads them when a process group is
made.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

import torch

from amp_launcher.settings import Settings
from amp_launcher.world.world import rank_and_size

BUFFER, DUMP, FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
NEWER = {BUFFER: "TORCH_FR_BUFFER_SIZE", FILE: "TORCH_FR_DUMP_TEMP_FILE"}
"""From torch 2.10 on, where the others still work with a warning."""
ENTRIES = 2000
"""Collectives that a rank remembers, which is what newer releases of torch do by themselves."""


def switch_on(
    settings: Settings,
    run: Path | None,
    device: str,
    environ: MutableMapping[str, str] = os.environ,
    version: tuple[int, int] = torch.torch_version.__version__,
) -> None:
    """Set the recorder's variables for the ranks of a run on GPUs that a watchdog looks at. What the user set stays."""
    watched = settings.amp.claims and settings.watchdog.after != 0
    if run is None or device != "cuda" or rank_and_size("torch", environ)[1] == 1 or not watched:
        return
    attempt = run / "attempts" / (environ.get("LAUNCHER_ATTEMPT") or "1")
    # torch adds the number of the rank to the name.
    for name, value in ((BUFFER, f"{ENTRIES}"), (DUMP, "1"), (FILE, f"{attempt}/nccl-rank")):
        newer = NEWER.get(name, name)
        if not {name, newer} & environ.keys():
            environ[newer if version >= (2, 10) else name] = value
