"""result.json: what was requested of a run, what it did and how fast, the same from every framework.

Standard library only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from amp_launcher.metrics import finite
from amp_launcher.run_folder import write_json

SCHEMA = 1


Status = Literal["done", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One run's outcome. Dictionaries are as the field's own comment lays them out; null is not known."""

    run: str | None
    status: Status
    reason: str | None = None
    """Why it failed, in one sentence."""
    attempts: int
    framework: str
    recipe: str
    mechanism: str
    requested: dict[str, Any]
    """amp, dtype, loss_scale, xla, compile, tf32, batch: as they were asked for."""
    effective: dict[str, Any]
    """The same, every auto resolved."""
    observed: dict[str, Any]
    """verdict, why, dtype, half_flop_share, step_flops, param_dtypes, reduce_dtype, gather_dtype, state_dtype, tf32,
    xla_clusters, device: as seen. `step_flops` are those of matrix products in a step, of one rank."""
    throughput: dict[str, Any]
    """unit, mean, median, p10, p90, warmup_steps, steps. On a GPU also `gpu_busy_share` and `matrix_share`, for text
    `mfu` and `flops_per_token` (all but the first: `loop.utilization`). For a script also `counted`, the optimizer
    whose steps these are, or `why` no rate is known."""
    peak_memory_bytes: int | None
    """The most of any rank in timed steps: of the device's memory on a GPU, of resident memory on a CPU. Of a script,
    and of a run without a timed step, in all that ran."""
    loss: dict[str, float | None]
    """first, last."""
    eval: dict[str, Any]
    """Of the held-out samples: accuracy, loss, of text also bits_per_byte; empty where the data set holds none out."""
    loss_scale: dict[str, Any]
    """final, skipped_steps."""
    updates: dict[str, int | None]
    """attempted, applied."""
    epochs: int | None
    steps: int | None
    """None where a user's script counts them in no way that can be read."""
    wall_seconds: float
    """Over all attempts, without what was lost after their last checkpoint."""
    world_size: int
    determinism: Literal["exact", "best_effort"]
    resumed_from: int | None
    """The step of the checkpoint that the last attempt went on from."""
    logged: dict[str, float] = field(default_factory=dict)
    """Of a script: the last value of each further name that it logged."""
    startup_memory_bytes: int | None = None
    """The most of any rank before the first timed step: with compilers and cuDNN's choice of algorithms. Null for a
    script, and where no step was timed."""
    profile: dict[str, Any] = field(default_factory=dict)
    """tool, steps, instead_of (the steps asked for, where there was no room for them), trace and tensor_core_share;
    empty where nothing was profiled."""
    verify: dict[str, Any] = field(default_factory=dict)
    """Of a replay: verdict, why, run, first, step, recorded, difference (step, rank, tensor, tensors, of, others)."""
    versions: dict[str, str | None] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)
    """code, image, data."""
    hardware: dict[str, str | None] = field(default_factory=dict)
    """gpu, uuid, driver, cpu."""


def document(result: Result) -> dict[str, Any]:
    """The JSON document: NaN and infinity are null, and "nonfinite" says where they stood."""
    values = {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}
    return finite({"schema": SCHEMA, **values})


def write(path: Path, result: Result) -> None:
    write_json(path, document(result))
