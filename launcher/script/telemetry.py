"""Telemetry of a run's GPUs and hosts: `telemetry.sh` writes it, this reads it as plain series.

    RUN/telemetry/<attempt>-<node>.gpu.csv    as `nvidia-smi` prints it, of this job's GPUs alone
    RUN/telemetry/<attempt>-<node>.node      the name of the node
    RUN/telemetry/<attempt>-<node>.host.csv   counters of /proc: the CPUs of the whole machine, and its
                                              memory or what a limit of the job's control group leaves of it

Attempts count from 1, nodes from 0. The sampling runs on the host, outside any container, every `telemetry.every`
seconds; a job without GPUs, or on a host without `nvidia-smi`, has no GPU file.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher import safe_files, units

FOLDER = "telemetry"

GPU_UNITS = {
    "memory": "MiB",
    "memory_total": "MiB",
    "utilization": "%",
    "memory_utilization": "%",
    "power": "W",
    "sm_clock": "MHz",
    "memory_clock": "MHz",
    "temperature": "C",
}
"""The values of a GPU, and their units."""
HOST_UNITS = {"cpu": "%", "memory": "MiB", "memory_total": "MiB"}
"""The values of a host. `cpu` is the share of all cores that was busy since the sample before; the first sample has
none. `memory` is what is not available to new programs."""

SLACK = 5.0
"""Seconds by which nvidia-smi's samples may come late."""

RECENT = 30
"""Samples that tell that a GPU is slow: five minutes, unless `telemetry.every` is set."""
BUSY = 50.0
"""Mean utilization, in percent, from which a GPU's clock is one at work."""
SLOWER = 1.2

# nvidia-smi's own names of the values of `GPU_UNITS`, in that order.
_QUERIED = (
    *("memory.used", "memory.total", "utilization.gpu", "utilization.memory"),
    *("power.draw", "clocks.current.sm", "clocks.current.memory", "temperature.gpu"),
)
_FILE = re.compile(r"(\d+)-(\d+)\.(gpu|host)\.csv")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_WHOLE = re.compile(r"[0-9]{1,18}")


class Series(NamedTuple):
    """Samples of one device in one attempt, oldest first: `values[name][i]` was read at `times[i]`."""

    attempt: int
    node: int
    device: str
    """`host`, or `gpu 0` by nvidia-smi's index."""
    uuid: str
    """Of a GPU; empty of a host."""
    times: tuple[float, ...]
    """Seconds since 1970."""
    values: dict[str, tuple[float | None, ...]]
    """By the names of `GPU_UNITS` or `HOST_UNITS`, in their units; None where the driver gave none."""

    def known(self, name: str) -> list[float]:
        """The values of that name that are not None."""
        return [value for value in self.values.get(name, ()) if value is not None]


class Telemetry(NamedTuple):
    """By attempt, node and device."""

    gpus: tuple[Series, ...] = ()
    hosts: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    """Other lines of nvidia-smi, such as that a GPU was lost, each once; samples that end early; files that can't be
    read."""


def read(run: Path) -> Telemetry:
    """The telemetry of a run's folder, empty where it has none. A line that is still being written is left out."""
    gpus: list[Series] = []
    hosts: list[Series] = []
    notes: dict[str, None] = {}
    asked: list[tuple[int, int]] = []
    try:
        matches = [match for path in (run / FOLDER).iterdir() if (match := _FILE.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return Telemetry()
    for attempt, node, kind in sorted((int(match[1]), int(match[2]), match[3]) for match in matches):
        name = f"{attempt}-{node}.{kind}.csv"
        try:
            text = safe_files.read_text(run / FOLDER / name)
        except OSError as error:
            notes[f"{name} can't be read: {error.strerror}"] = None
            continue
        lines = text[: text.rfind("\n") + 1].splitlines()
        if kind == "gpu":
            devices, others = parse_gpus(lines, attempt, node)
            gpus += devices
            notes |= dict.fromkeys(others)
            asked.append((attempt, node))
        else:
            hosts += parse_host(lines, attempt, node)
    notes |= dict.fromkeys(note for place in asked if (note := _ended_early(gpus, hosts, *place)))
    return Telemetry(gpus=tuple(gpus), hosts=tuple(hosts), notes=tuple(notes))


def _ended_early(gpus: Sequence[Series], hosts: Sequence[Series], attempt: int, node: int) -> str:
    """A note that nvidia-smi ended before the run, as it does when it crashes; else empty."""
    where = f"attempt {attempt}, node {node}"
    seen = [series.times[-1] for series in gpus if (series.attempt, series.node) == (attempt, node)]
    host = next((series.times for series in hosts if (series.attempt, series.node) == (attempt, node)), ())
    if not seen:
        return f"nvidia-smi gave no sample ({where})" if len(host) > 2 else ""
    between = max((after - before for before, after in itertools.pairwise(host)), default=0.0)
    if not host or host[-1] - max(seen) <= 2 * between + SLACK:
        return ""
    return f"nvidia-smi's samples end {host[-1] - max(seen):.0f} s before the host's do ({where})"


def parse_gpus(lines: Iterable[str], attempt: int = 1, node: int = 0) -> tuple[list[Series], list[str]]:
    """Series by index from nvidia-smi's CSV, which has its header first, and the lines that are no samples."""
    header: list[str] = []
    notes: list[str] = []
    samples: dict[tuple[int, str], list[tuple[float, list[float | None]]]] = {}
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if fields[0] == "timestamp":
            header = [field.partition(" ")[0] for field in fields]
            continue
        time = units.seconds_of(f"{fields[0].replace('/', '-')}+00:00")
        row = dict(zip(header, fields, strict=False))
        if time is None or len(fields) != len(header) or not _WHOLE.fullmatch(row.get("index", "")):
            notes += [line.strip()] if line.strip() else []
            continue
        values = [_number(row.get(name, "")) for name in _QUERIED]
        samples.setdefault((int(row["index"]), row.get("uuid", "")), []).append((time, values))
    series = []
    for (index, uuid), rows in sorted(samples.items()):
        times = tuple(time for time, _ in rows)
        columns = zip(*(values for _, values in rows), strict=True)
        series.append(Series(attempt, node, f"gpu {index}", uuid, times, dict(zip(GPU_UNITS, columns, strict=True))))
    return series, notes


def parse_host(lines: Iterable[str], attempt: int = 1, node: int = 0) -> list[Series]:
    """The series of a host's counters: one, or none where there is no sample."""
    samples: list[tuple[float, float | None, float, float]] = []
    before: tuple[int, int] | None = None
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 5 or not all(map(_WHOLE.fullmatch, fields)):
            continue
        time, busy, ticks, available, total = map(int, fields)
        moved = ticks - before[1] if before else 0
        share = 100 * (busy - before[0]) / moved if before and moved > 0 else None
        samples.append((time, share, (total - available) / 1024, total / 1024))
        before = busy, ticks
    if not samples:
        return []
    times, *columns = zip(*samples, strict=True)
    return [Series(attempt, node, "host", "", times, dict(zip(HOST_UNITS, columns, strict=True)))]


def _number(text: str) -> float | None:
    """None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def peak(series: Sequence[Series], name: str) -> float | None:
    return max((value for device in series for value in device.known(name)), default=None)


class Slow(NamedTuple):
    """A GPU that works at a lower clock than the others, as one that is too hot or short of power."""

    device: str
    node: int
    clock: float
    """MHz, a mean of its recent samples."""
    others: float
    """The median of the attempt's GPUs with as much memory: other models have other clocks."""


def slow_gpus(series: Sequence[Series]) -> list[Slow]:
    """Those of the newest attempt of which the median clock is more than `SLOWER` times theirs, slowest first. The
    ranks of GPUs that wait for a slow one are busy too, so that neither utilization nor the time of steps tells."""
    newest = max((one.attempt for one in series), default=0)
    kinds: dict[float | None, list[tuple[float, Series]]] = {}
    for one in series:
        clock, busy = one.known("sm_clock")[-RECENT:], one.known("utilization")[-RECENT:]
        if one.attempt == newest and len(clock) == RECENT and busy and statistics.fmean(busy) >= BUSY:
            kinds.setdefault(peak([one], "memory_total"), []).append((statistics.fmean(clock), one))
    found = []
    for alike in kinds.values():
        middle = statistics.median_high(clock for clock, _ in alike)  # of two GPUs the faster one's
        found += [Slow(one.device, one.node, clock, middle) for clock, one in alike if middle > SLOWER * clock]
    return sorted(found, key=lambda slow: slow.clock)


def node_of(run: Path, attempt: int, number: int) -> str:
    """The name of a node, or its number where it left no name."""
    try:
        name = safe_files.read_text(run / FOLDER / f"{attempt}-{number}.node").strip()
    except OSError:
        name = ""
    return name if _NODE.fullmatch(name) else f"node {number}"


def mean(series: Sequence[Series], name: str) -> float | None:
    known = [value for device in series for value in device.known(name)]
    return sum(known) / len(known) if known else None
