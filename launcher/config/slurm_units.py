"""Times and resources as Slurm writes them."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")
_MEMORY = re.compile(r"(\d+)([KMGTkmgt]?)[Bb]?")
_GRES = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[,(]|$))([^:,()]+))?(?::(\d+))?")
"""A lone number is the count; a site may call a type `2080ti`, or `3090`."""


def minutes(text: str) -> int | None:
    """A time limit in minutes, rounded up; None for no limit.

    The forms are sbatch's: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS. Raises `ValueError` for any other.
    """
    if text.lower() in ("infinite", "unlimited", "-1"):
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not a time as Slurm writes it: 90, 30:00, 1:30:00, 2-12, 2-12:00:00")
    parts = [int(part) for part in match["clock"].split(":")]
    begins_with_hours = match["days"] is not None or len(parts) == 3
    hours, mins, seconds = [*([] if begins_with_hours else [0]), *parts, 0, 0][:3]
    return (int(match["days"] or 0) * 24 + hours) * 60 + mins + (seconds + 59) // 60


def gpus(gres: str, kind: str | None = None) -> int:
    """GPUs in a node's generic resources, as `gpu:a100:4(S:0-1),shard:8`, or those of one type there. A
    type without a count is one GPU."""
    return sum(int(count or 1) for name, count in _GRES.findall(gres) if kind in (None, name))


def gpu_types(gres: str) -> list[str]:
    """Names of the GPUs' types there, an empty one for GPUs that were given none."""
    return [name for name, _ in _GRES.findall(gres)]


def mebibytes(text: str) -> int:
    """Memory as sbatch's --mem takes it, 64G or 64000 (MiB), in MiB. Raises `ValueError` for any other form."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is no memory as Slurm writes it: 64G, 64000M")
    return (int(match[1]) << 10 * "KMGT".index(match[2].upper() or "M")) >> 10
