"""The lines for people at the start and at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator

from amp_launcher.loop import result_fields
from amp_launcher.loop.run import Run
from amp_launcher.loop.training import Training
from amp_launcher.precision import gemm_layers
from amp_launcher.result import Result
from amp_launcher.run_folder import RunFolder
from amp_launcher.world.world import table


def introduction(run: Run, training: Training, data: str) -> Iterator[str]:
    """What runs where, and in which mode; `data` is the data set in a line."""
    settings, world = run.settings, run.world
    if len(world.members) > 1:
        yield table(world.members)
    yield f"{settings.recipe} on {data}"
    repeats = "deterministic" if run.deterministic else "not deterministic"
    yield f"{run.device.where()}, seed {settings.seed}, {repeats}"
    yield from result_fields.mode_lines(settings, run.mode)
    if run.converted:
        yield gemm_layers.line(settings.amp.gemm, *run.converted)
        if run.device.kind == "cpu":
            half = f"amp={settings.amp.level}" if settings.amp.preset else "amp.gemm=half"
            yield f"a CPU multiplies these at a few GFLOP/s: take a small batch and small layers, or say {half}"
    parts = [f"batch {settings.batch}"]
    if run.devices > 1:
        parts.append(f"over {run.devices} {'ranks' if run.devices == world.size else 'devices'}")
        if run.mode.framework == "torch":
            parts.append(f"by {run.mode.parallel}")
    elif run.mode.parallel == "fsdp":
        parts.append("on one rank, which holds all shards")
    if settings.accumulate > 1:
        parts.append(f"in {settings.accumulate} micro-batches")
    yield f"{' '.join(parts)}, {_steps(training.attempt.last)}"
    if run.replay:
        asked = run.replay.request
        yield f"replay of steps {asked.first + 1} to {asked.step} of {asked.run}"
    if training.profiling.note:
        yield training.profiling.note


def resumption(training: Training) -> Iterator[str]:
    """From where an attempt continues, and what of the metrics is lost; nothing at a run's beginning."""
    attempt = training.attempt
    if attempt.resumed_from is None:
        return
    yield f"resumed after step {attempt.first} from {attempt.resumed_from}"
    lost = attempt.first - training.journal.metrics.summary.steps
    if lost > 0 and not attempt.replays:
        yield f"metrics.jsonl is damaged: it lacks {lost} of those steps, and so does what sums them up"


def conclusion(record: Result, folder: RunFolder | None) -> Iterator[str]:
    """What came of a run that reached its last step."""
    facts = [f"held-out {name} {value:.4f}" for name, value in record.eval.items()]
    throughput, skipped = record.throughput, record.loss_scale["skipped_steps"]
    if throughput["mean"] is not None:
        facts.append(f"{throughput['mean']:,.0f} {throughput['unit']}")
    if throughput.get("mfu") is not None:
        facts.append(f"{throughput['mfu']:.1%} of peak FLOPs")
    facts.append(f"{(record.peak_memory_bytes or 0) / 2**20:,.0f} MiB at most")
    if skipped:
        facts.append(f"{_steps(skipped)} skipped on overflow")
    yield f"{_steps(record.steps or 0)} in {record.wall_seconds:.1f} s: {', '.join(facts)}"
    yield f"amp={record.requested['amp']} {record.observed['verdict']}: {record.observed['why']}"
    if folder:
        yield f"result in {folder.result}"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"
