"""A run's progress, and the check that a checkpoint belongs to the job that resumes from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.precision.levels import Amp
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, leaves, plain, show

FREE = (
    "epochs",
    "steps",
    "checkpoint",
    "profile",
    "require_proof",
    "verify",
    "watchdog",
    "deterministic",
    "device",
    "parallel",
    "data.dir",
    "data.download",
)
"""Settings that may change when a run resumes; the others define the job."""
RETIRED = {f"amp.{name}": value for name, value in Amp.RETIRED.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A run's progress, beside its tensors."""

    step: int = 0
    """Optimizer steps done."""
    attempt: int = 0
    """Attempt that did the last of them, counted from 1."""
    skipped: int = 0
    """Steps among them that the loss scale skipped."""
    seconds: float = 0.0
    """Time of all attempts."""
    metrics_offset: int = 0
    """Bytes of metrics.jsonl that belong to these steps."""
    exact: bool = True
    """Whether every attempt is deterministic, and resumed on the same kind of machine."""
    data: str = ""
    """Digest of the data, where a run resumes on the same data alone."""
    facts: tuple[dict[str, Any], ...] = ()
    """Facts that shaped the arithmetic of the attempt that did the last of them, on each rank."""
    reports: tuple[dict[str, Any], ...] = ()
    """Reports of the observed steps, on all ranks."""


def to_dict(progress: Progress) -> dict[str, Any]:
    return {field.name: getattr(progress, field.name) for field in dataclasses.fields(progress)}


def restored(saved: Mapping[str, Any], checkpoint: Checkpoint, machine: Mapping[str, Any]) -> Progress:
    """The progress that a checkpoint holds; exact only if `machine`, which shapes the arithmetic, is what it was."""
    progress = Progress(**saved)
    same = all(checkpoint.manifest.get(key) == value for key, value in machine.items())
    return dataclasses.replace(progress, exact=progress.exact and same)


def refuse_another_job(checkpoint: Checkpoint, settings: Settings) -> None:
    """Raise `SettingsError` for the checkpoint of another job."""
    before, after = leaves(checkpoint.manifest["settings"]), leaves(plain(settings))
    after.update({key: value for key, value in RETIRED.items() if before.get(key) == value})
    for key in sorted({*before, *after}):
        free = any(key == prefix or key.startswith(f"{prefix}.") for prefix in FREE)
        if not free and before.get(key) != after.get(key):
            raise SettingsError(
                f"{key}={show(after.get(key))}, and {checkpoint.path} was saved with {key}={show(before.get(key))}; "
                "say that to continue it, or name another run folder to start anew",
                key,
            )
