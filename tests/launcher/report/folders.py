"""Run folders as runs leave them, for reports."""

from __future__ import annotations

from launcher.report import read, sections
from launcher.runs import store
from launcher.runs.store import Run

from ..run_folders import NAME, SWEEP, finished, metrics, result

OTTER, OWL = NAME, "20260102-030406-brave-owl"


def rows(steps, *, rate=3400.0, loss=2.3, scale=None):
    """A start, `steps` steps of which the first five are not timed, and two evaluations."""
    written = [{"event": "start", "attempt": 1, "total_steps": steps, "epochs": 2, "time": 0.0}]
    for step in range(1, steps + 1):
        seconds = 128 / rate * (1 + 0.1 * (step % 3))
        written.append(
            {
                "step": step,
                "epoch": 0,
                "loss": loss / step,
                "lr": 1.0,
                "seconds": seconds,
                "samples_per_second": 128 / seconds,
                "loss_scale": scale,
                "skipped": scale is not None and step % 10 == 0,
                "skipped_total": 0,
                "grad_norm": None,
                "memory_bytes": 2**29,
                "timed": step > 5,
                "time": float(step),
            }
        )
    written += [{"event": "eval", "step": steps // half, "epoch": 0, "accuracy": 0.9 / half} for half in (2, 1)]
    return written


def plan(level, batch=128, **more):
    return {
        "schema": 1,
        "name": f"mnist-{level}",
        "recipe": "mnist",
        "framework": "torch",
        "mechanism": {"o0": "float32", "o1": "autocast"}.get(level, "half_model_fp32_masters"),
        "words": [f"amp={level}", f"batch={batch}"],
        "settings": {"amp": {"level": level, "dtype": "auto"}, "batch": batch, "seed": 0},
        "host": "here",
        **more,
    }


def run(root, name, level="o2", steps=40, **more):
    """A run that is done: plan, result, provenance and metrics."""
    folder = finished(root, name)
    store.write_json(folder / "plan.json", plan(level, **more.pop("planned", {})))
    outcome = result(requested={"amp": level, "dtype": "auto", "batch": 128}, **more.pop("resulting", {}))
    outcome["effective"] = {**outcome["effective"], "amp": level}
    store.write_json(folder / "result.json", outcome)
    provenance = {
        "schema": 1,
        "created": "2026-01-02T03:04:04Z",
        "command": ["python", "-m", "launcher", f"amp={level}"],
    }
    store.write_json(folder / "provenance.json", {**provenance, "code": {"digest": "d" * 64, "commit": "c" * 40}})
    metrics(folder, rows(steps, **more))
    return folder


def sweep(root, levels=("o0", "o1", "o2")):
    """The cells of a sweep over levels."""
    names = [f"{SWEEP}-{index:03}" for index in range(len(levels))]
    folders = []
    for name, level, factor in zip(names, levels, (1.0, 2.0, 2.5), strict=False):
        throughput = {"unit": "samples/s", "mean": 1000 * factor, "p10": 900 * factor, "p90": 1100 * factor}
        planned = {"swept": [["amp", level]]}
        scale = None if level == "o0" else 65536.0
        folders.append(run(root, name, level, planned=planned, resulting={"throughput": throughput}, scale=scale))
    return folders


def document(*paths):
    """The report of these runs."""
    return sections.of_runs("some runs", read.gather([Run(str(path.parent), path.name) for path in paths]))
