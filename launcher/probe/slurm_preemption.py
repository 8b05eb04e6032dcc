"""Which of a Slurm cluster's jobs others may take the place of, and the seconds that those then have."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from launcher.errors import Unavailable
from launcher.probe.facts import Preemptible
from launcher.probe.slurm_commands import call

_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
ENDING = ("REQUEUE", "CANCEL")
"""Modes that end a job; the others halt it."""
PATIENCE = 10.0
"""Seconds for the accounts, without which a job can be submitted all the same."""


def probe(settings: Mapping[str, str]) -> tuple[Preemptible, ...]:
    """By what `scontrol show config` says. Empty where no job is ended for another, or Slurm doesn't answer."""
    kind = settings.get("PreemptType", "").rpartition("/")[2]
    with contextlib.suppress(Unavailable):
        if kind == "partition_prio":
            return tuple(of_partitions(call(["scontrol", "--oneliner", "show", "partition"]).stdout))
        if kind == "qos":
            argv = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,Preempt,PreemptMode,GraceTime"]
            return tuple(of_qos(call(argv, timeout=PATIENCE).stdout, settings.get("PreemptMode", "")))
    return ()


def of_partitions(text: str) -> Iterator[Preemptible]:
    """From `scontrol --oneliner show partition`. A job is preempted for one of a partition of a higher tier."""
    rows = [dict(_FIELD.findall(line)) for line in text.splitlines()]
    top = max((_number(row.get("PriorityTier", "")) for row in rows), default=0)
    for row in rows:
        mode = _ending(row.get("PreemptMode", ""))
        if mode and _number(row.get("PriorityTier", "")) < top:
            yield Preemptible(by="partition", name=row["PartitionName"], mode=mode, grace=_number(row["GraceTime"]))


def of_qos(text: str, default: str) -> Iterator[Preemptible]:
    """From `sacctmgr show qos`. A job is preempted for one of a QOS that names its own; `default` is the mode of those
    that have `cluster`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    victims = {name for row in rows for name in row[1].split(",")}
    for name, _, mode, grace in rows:
        ending = _ending(default if mode in ("cluster", "") else mode)
        if ending and name in victims:
            yield Preemptible(by="qos", name=name, mode=ending, grace=_seconds(grace))


def _ending(mode: str) -> str:
    return next((name.lower() for name in ENDING if name in mode.upper().split(",")), "")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _seconds(text: str) -> int:
    """Of `[DAYS-]HH:MM:SS`."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + _number(part)
    return _number(days) * 86400 + total
