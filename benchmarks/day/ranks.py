"""Part (g): a run that is stopped and resumed, and one of which a rank is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.day.checks import Check, Day, first_other

STOPS = 60.0
"""Seconds within which a run ends once one of its ranks was killed."""


def ranks(day: Day) -> Iterator[Check]:
    yield _resumed(day)
    for how, place in _places(day).items():
        batch, some = ("batch=4", 6) if day.tiny else ("batch=64", 30)
        words = ("recipe=mnist", "amp=o2", "data=synthetic", batch, "steps=20000", f"checkpoint.every={some}", *place)
        with _started(day, *words) as run:
            _wait(day, run, some)
            stopped = day.launcher("cancel", run)
            state = _ended(day, run)
            saved = any(day.folder_of(run).glob("checkpoints/step-*"))
            right = state in ("stopped", "cancelled") and saved
            yield Check(name=f"{how}: stops with its state saved", passed=right, facts={"state": state, "saved": saved})
            before = _steps(day, run)
            day.launcher("resume", run, "detach=true")
            _wait(day, run, before + some)
            began = time.monotonic()
            os.kill(max(_trainers(run)), signal.SIGKILL)
            state, took = _ended(day, run), time.monotonic() - began
            left = _trainers(run)
            facts = {"state": state, "seconds": took, "processes_left": len(left), "cancel": stopped.returncode}
            right = state == "failed" and took < STOPS and not left
            yield Check(name=f"{how}: ends when a rank is killed, and leaves nothing", passed=right, facts=facts)
            done = day.launcher(*words[:4], "steps=8", *place)
            right = done.returncode == 0
            yield Check(name=f"{how}: what it ran on is free again", passed=right, facts=dict(day.why(done)))


def _places(day: Day) -> dict[str, tuple[str, ...]]:
    """Two GPUs where there are two, else one process."""
    import torch

    if day.device == "cpu":
        return {"ddp": ("device=cpu",)}
    if torch.cuda.device_count() > 1:
        return {how: ("gpus=2", f"parallel={how}") for how in ("ddp", "fsdp")}
    return {"one GPU": ("gpus=1",)}


def _resumed(day: Day) -> Check:
    """A run that was stopped and resumed has the losses of one that was not, to the last bit."""
    # On a CPU a step in float16 can take a second.
    dtype, steps, batch, every = ("bfloat16", 10, 4, 3) if day.tiny else ("float16", 3000, 64, 20)
    words = ("recipe=mnist", "amp=o2", f"amp.dtype={dtype}", "data=synthetic", "deterministic=true")
    words = (*words, f"steps={steps}", f"batch={batch}", f"checkpoint.every={every}", *day.one_gpu())
    whole = day.launcher(*words, "name=whole")
    with _started(day, *words, "name=parted") as run:
        _wait(day, run, every + 1)
        day.launcher("cancel", run)
        state = _ended(day, run)
        day.launcher("resume", run)
    one, other = (_losses(day, name) for name in ("whole", "parted"))
    facts = {"exit_code": whole.returncode, "state": state, "losses": len(one), "first_other": first_other(one, other)}
    right = len(one) == len(other) == steps and one == other
    return Check(
        name="a resumed run has the losses of one that was not stopped", passed=right, facts=facts | day.why(whole)
    )


def _losses(day: Day, name: str) -> list[str]:
    """The loss of each step, as written in the metrics of the run of that name."""
    found: list[str] = []
    for plan in (day.home / "runs").glob("*/plan.json"):
        rows = plan.with_name("metrics.jsonl")
        if json.loads(plan.read_text())["name"] == name and rows.exists():
            found = [str(row["loss"]) for row in map(json.loads, rows.read_text().splitlines()) if "loss" in row]
    return found


@contextlib.contextmanager
def _started(day: Day, *words: str) -> Iterator[str]:
    done = day.launcher(*words, "detach=true")
    run = done.stdout.split()[0] if done.returncode == 0 else ""
    if not run:
        raise RuntimeError(f"it was not started: {done.stderr[-300:]}")
    try:
        yield run
    finally:
        for process in _trainers(run):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def _trainers(run: str) -> list[int]:
    """Processes whose environment names the run, and that have an attempt's own."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            environ = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
            if f"LAUNCHER_RUN_ID={run}".encode() in environ and b"train_torch" in command:
                found.append(int(entry.name))
    return found


def _steps(day: Day, run: str) -> int:
    rows = day.folder_of(run) / "metrics.jsonl"
    return rows.read_text().count('{"step"') if rows.exists() else 0


def _wait(day: Day, run: str, enough: int, seconds: float = 180) -> None:
    """Until the run's metrics have so many steps."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _steps(day, run) >= enough:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{run} took too few steps in {seconds:.0f} s")


def _ended(day: Day, run: str, seconds: float = 120) -> str:
    """The state of a run, once it ended or the time is over."""
    end, state = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        values = json.loads(day.launcher("ls", run, "--json").stdout or "{}")
        state = values.get("state", "")
        if values.get("finished"):
            break
        time.sleep(0.5)
    return state
