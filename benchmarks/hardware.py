"""The hardware that figures were measured on, without names of machines or people."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def machine_class(hardware: dict[str, Any]) -> str:
    """A short word for machines like this one, for a file's name."""
    cpu = re.sub(r"[^a-z0-9]+", "-", hardware["cpu"].lower()).strip("-")
    return f"{cpu}-{hardware['cores']}-cores"


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return model[1] if model else platform.machine()


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
