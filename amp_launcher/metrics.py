"""metrics.jsonl: one JSON object a line, every optimizer step exactly once; and the summary of a run.

Standard library only. A row with "step" and no "event" is an optimizer step.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from amp_launcher import records
from amp_launcher.run_folder import naming, replacing

STEP = {
    "step": "number of the optimizer step, from 1",
    "epoch": "pass over the data that it is part of, from 0",
    "loss": "mean over the samples of all ranks; of several losses the sum",
    "lr": "learning rate of the first group of parameters",
    "seconds": "that it took; of several steps of one execution an equal share",
    "samples_per_second": "batch / seconds; for a script, the rate of the samples that it logged",
    "loss_scale": "scale that its gradients had, null without one",
    "skipped": "whether it overflowed, and was not taken",
    "skipped_total": "steps skipped since the run began, this one included",
    "grad_norm": "norm of all gradients, unscaled and before clipping, where it is computed anyway; else null",
    "memory_bytes": "the most on this rank so far, in timed steps once there are any: on a GPU, or resident on a CPU",
    "timed": "whether its time says anything of the speed: behind the warm-up, and not observed",
    "time": "when it was handed to the device, in seconds since 1970",
}
"""A step's keys, the same from every framework. Beside them, where they apply: `losses`, each of several by name;
`data_seconds`, waited for data; `gpu_seconds`, in which a kernel ran on the GPU, of the last step of each attempt's
warm-up; `tokens_per_second`, of samples of text; `nonfinite`, the keys whose value was NaN or infinite and is null.

Rows of a user's script (`amp_launcher.around.step_meter`) have the same keys, with null for unknown values,
and `steps_per_second`."""
RATES = (("tokens_per_second", "tokens/s"), ("samples_per_second", "samples/s"), ("steps_per_second", "steps/s"))
"""A row's rates and their units: the first rate that it has is shown."""
EVENT_KEYS = ("event", "step", "epoch", "time", "nonfinite")


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with NaN and infinity as null, at any depth, and a "nonfinite" list of the keys where they stood."""
    where: list[str] = []
    cleaned: dict[str, Any] = _clean(values, "", where)
    if where:
        cleaned["nonfinite"] = where
    return cleaned


def _clean(value: Any, key: str, where: list[str]) -> Any:
    if value is None or isinstance(value, (int, str)):  # most values, before what takes longer to tell
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        where.append(key)
        return None
    if isinstance(value, Mapping):
        return {name: _clean(item, f"{key}.{name}" if key else name, where) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, f"{key}.{index}", where) for index, item in enumerate(value)]
    return value


_SUMMED = ("loss", "skipped", "loss_scale", "timed", "samples_per_second")
"""A step's keys that the summary needs."""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The complete rows; an unfinished last line and damaged rows are left out."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and (row := _row(line)) is not None:
                yield row


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    complete = isinstance(row, dict) and ("event" in row or all(key in row for key in _SUMMED))
    return row if complete else None


_encoded = json.JSONEncoder(allow_nan=False).encode


def line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of the file; its values are `finite`."""
    return _encoded(row).encode() + b"\n"


class Summary:
    """The summary of a run's rows, over all its attempts."""

    def __init__(self) -> None:
        self.steps = 0
        self.last_step: int | None = None
        self.untimed = 0
        self.skipped = 0
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.loss_scale: float | None = None
        self.evaluation: dict[str, Any] = {}
        self.logged: dict[str, float] = {}
        """The last value of each further name that the script logged."""
        self._rates = {key: array("d") for key, _ in RATES}
        self._seconds = self._waited = 0.0
        self._step_seconds = array("d")
        self._gpu_seconds: float | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row, as written or as read back."""
        row = {**row, **dict.fromkeys(row.get("nonfinite", ()), math.nan)}
        if row.get("event") == "eval":
            self.evaluation = {key: row[key] for key in row if key not in EVENT_KEYS}
        if "event" in row:
            return
        self.steps += 1
        self.last_step = row.get("step")
        self.skipped += bool(row["skipped"])
        if row["loss"] is not None:
            self.first_loss = row["loss"] if self.first_loss is None else self.first_loss
            self.last_loss = row["loss"]
        self.loss_scale = row["loss_scale"]
        self.logged |= row.get("logged", {})
        self._gpu_seconds = row.get("gpu_seconds", self._gpu_seconds)
        if row["timed"]:
            if row.get("seconds"):
                self._step_seconds.append(row["seconds"])
            for key, rates in self._rates.items():
                if row.get(key) is not None:
                    rates.append(row[key])
            if "data_seconds" in row:
                self._seconds += row["seconds"]
                self._waited += row["data_seconds"]
        else:
            self.untimed += 1

    @property
    def step_seconds(self) -> float | None:
        """The median of the timed steps."""
        return statistics.median(self._step_seconds) if self._step_seconds else None

    def throughput(self) -> dict[str, Any]:
        """Samples a second over the timed steps: those after each attempt's warm-up that no one was observing. Tokens a
        second where samples are text; steps a second for a script that never logged its samples.

        `mean` is the arithmetic mean of each step's rate, as NVIDIA's training benchmarks take it; of a script the
        harmonic mean, steps by their time, since its evaluations and checkpoints are among the steps' times. Null where
        no step was timed. `data_share` is the part of the steps' time that was spent waiting for data; null where
        nothing had to be waited for, since all data is on the device. `gpu_busy_share`, where a GPU's kernels were
        recorded, is the part of the median step in which at least one ran.
        """
        key, unit = next((rate for rate in RATES if self._rates[rate[0]]), ("samples_per_second", "samples/s"))
        rates = self._rates[key]
        figures: dict[str, Any] = {"unit": unit, "mean": None, "median": None, "p10": None, "p90": None}
        if rates:
            mean = statistics.harmonic_mean if self._rates["steps_per_second"] else statistics.fmean
            deciles = statistics.quantiles(rates, n=10, method="inclusive") if len(rates) > 1 else rates
            figures |= {"mean": mean(rates), "median": statistics.median(rates), "p10": deciles[0], "p90": deciles[-1]}
        share = self._waited / self._seconds if self._seconds else None
        if self._gpu_seconds is not None and self.step_seconds:
            figures["gpu_busy_share"] = min(1.0, self._gpu_seconds / self.step_seconds)
        return {**figures, "data_share": share, "warmup_steps": self.untimed, "steps": len(rates)}


class MetricsWriter:
    """Appends rows to metrics.jsonl and sums them up; without a path it only sums up.

    A run that goes on gives the `offset` that its checkpoint remembers: what was written after it is cut off, so that
    no step appears twice, and what was written before it is read back into the summary. What is left becomes a file of
    its own, so that nothing reaches it from an attempt that was treated as dead and still writes.
    """

    def __init__(self, path: Path | None, offset: int = 0) -> None:
        self.summary = Summary()
        self._file: BinaryIO | None = None
        if path is None:
            return
        if path.exists():
            _cut(path, offset)
            for row in read(path):
                self.summary.add(row)
        self._file = open(path, "ab", opener=records.record)  # noqa: SIM115 (stays open for the whole run)
        weakref.finalize(self, self._file.close).atexit = False  # a script may end after its exit functions

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write whole lines, all of them at once."""
        cleaned = [finite(row) for row in rows]
        for row in cleaned:
            self.summary.add(row)
        if self._file is not None:
            with naming(Path(self._file.name)):
                self._file.write(b"".join(line(row) for row in cleaned))
                self._file.flush()

    def offset(self) -> int:
        """Bytes that have reached the disk, for a checkpoint to record."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()


def _cut(path: Path, offset: int) -> None:
    with open(path, "rb") as old, replacing(path) as new:
        kept = old.read(offset)
        new.write(kept[: kept.rfind(b"\n") + 1])  # of a file that lost its end, no half line for a new row to join


FULL_WARM_UP = 50
"""Steps of an attempt from which on its warm-up has its full length."""


def warm_up(steps: int) -> int:
    """Warm-up steps of an attempt, which are not timed: ten, or a fifth of a short attempt."""
    return min(10, steps // 5)
