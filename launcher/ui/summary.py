"""Summaries of runs: from their files to lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher import records
from amp_launcher.shown import show
from launcher import units
from launcher.runs import run_ids, run_roots, store
from launcher.runs.schema import PlanRecord, ResultRecord
from launcher.runs.states import State
from launcher.ui import tables

WAITING = 0.02
"""Share of the steps' time spent waiting for data from which on it is shown."""


def label_of(name: str, plan: PlanRecord) -> str:
    """The label of the run by that name on screens: its words; in a sweep its number and its swept settings, in a chain
    its job."""
    number = name.rpartition("-")[2]
    if plan.job:
        return f"{number} {plan.job}"
    if not plan.swept:
        return run_ids.words_of(name)
    return f"{number} {_typed(f'{key}={show(value)}' for key, value in plan.swept)}"


def title(folders: Sequence[Path]) -> str:
    """The first line of a screen: the runs that it shows."""
    if len(folders) == 1:
        plan = store.read(PlanRecord, store.plan_path(folders[0]), REQUEST_FIELDS)
        return tables.clean(f"{folders[0].name}  {request_of(plan)}".rstrip())
    sweeps = dict.fromkeys(run_ids.sweep_of(folder.name) or folder.name for folder in folders)
    return f"{len(folders)} runs of {', '.join(sweeps)}"


def request_of(plan: PlanRecord) -> str:
    """What was requested: the run's name, its trainer's words and its script's arguments, or a function's values."""
    arguments = plan.script.arguments if plan.script else ()
    last = f"-- {shlex.join(arguments)}" if arguments else ""
    if plan.script and plan.script.file == records.FUNCTION:
        last = _typed(f"{key}={show(value)}" for key, value in plan.swept)
    return " ".join(word for word in (plan.name, _typed(plan.words), last) if word)


def _typed(words: Iterable[str]) -> str:
    """The words as a shell takes them: those with blanks are quoted."""
    return " ".join(shlex.quote(word) if any(map(str.isspace, word)) else word for word in words)


REQUEST_FIELDS = ("name", "words", "script", "swept")
"""What `request_of` needs of a plan."""


def elapsed(state: State, now: float) -> float | None:
    """Seconds that all attempts of a run have taken so far, or took, without the time between them."""
    started = units.seconds_of(state.started)
    if started is None:
        return None
    ended = units.seconds_of(state.ended)
    if ended is None:
        # A run that was lost or killed has no end time.
        return None if state.finished else state.before + now - started
    return state.before + ended - started


def headline(state: State, now: float) -> str:
    """A state with its reason and how long it took, in one line."""
    seconds = elapsed(state, now)
    duration = f" after {units.duration(seconds)}" if seconds is not None and state.finished else ""
    attempt = f" (attempt {state.attempt})" if state.attempt > 1 else ""
    return f"{state.name}{duration}{attempt}{': ' if state.reason else ''}{state.reason}"


ROW_FIELDS = ("attempts", "eval", "throughput", "observed", "updates")
"""What rows of tables show of a result."""


def result_of(folder: str | Path, state: State, only: Collection[str] = ()) -> ResultRecord:
    """The result that the run's last attempt left; empty if that left none. `only`
    names the fields that are wanted, where not all are."""
    return if_of(store.read(ResultRecord, f"{folder}/result.json", only), state)


def if_of(result: ResultRecord, state: State) -> ResultRecord:
    """The result, if it is that of the run's last attempt; else an empty one."""
    return result if result.attempts in (None, state.attempt) else ResultRecord()


LAUNCH_BOUND = 0.5
"""Of a step's time: a GPU that computes for less of it waits for the CPU, whatever the precision."""


def is_launch_bound(result: ResultRecord) -> bool:
    """Whether its GPU mostly waited for the CPU, which starts each kernel, and not for data."""
    busy, waited = result.throughput.gpu_busy_share, result.throughput.data_share or 0.0
    return busy is not None and busy < LAUNCH_BOUND and waited < LAUNCH_BOUND


def way_out(results: Iterable[ResultRecord]) -> str:
    """What gives a launch-bound GPU more to do."""
    compiled = all(result.effective.get("compile") for result in results)
    return "a larger batch" if compiled else "compile=true or a larger batch"


def _launch_bound(result: ResultRecord) -> str:
    if not is_launch_bound(result):
        return ""
    return f"; launch-bound: the GPU was {result.throughput.gpu_busy_share:.0%} busy, try {way_out([result])}"


FEW_PRODUCTS = 0.05
"""Of a step's time: matrix products that would take less of it in float32 gain little from tensor cores."""


def _few_products(result: ResultRecord) -> str:
    share = result.throughput.matrix_share
    if share is None or share >= FEW_PRODUCTS or is_launch_bound(result):
        return ""
    return f"; float32 would need {share:.1%} of a step for its matrix products: a faster format for them gains little"


def outcome(result: ResultRecord) -> list[tuple[str, str]]:
    """Results of a run as names and texts; only what the result holds."""
    rows = []
    if result.comparison:
        rows.append(("verdict", result.comparison.verdict or ""))
    if (verified := result.verify).verdict == "same":  # else the headline has it, as the reason why the replay failed
        rows.append(("verify", f"same: {verified.why}"))
    if accuracy := accuracy_of(result):
        loss, test = result.eval.get("loss"), result.eval.get("test_accuracy")
        rows.append(("accuracy", accuracy + (f" (held out, loss {units.number(loss)})" if loss is not None else "")))
        if test is not None:
            rows.append(("test accuracy", f"{test:.4f}"))
    if (bits := result.eval.get("bits_per_byte")) is not None:
        rows.append(("bits per byte", f"{bits:.4f} (held out)"))
    if throughput := throughput_of(result):
        spread = result.throughput
        ends = f" (p10 {units.number(spread.p10)}, p90 {units.number(spread.p90)})" if spread.p10 is not None else ""
        waited = spread.data_share or 0.0
        waiting = f", {waited:.0%} of the time waiting for data" if waited >= WAITING else ""
        busy = _launch_bound(result)
        counted = f", steps of {spread.counted}" if spread.counted else ""
        counted += f", {spread.mfu:.1%} of peak FLOPs" if spread.mfu is not None else ""
        rows.append(("throughput", f"{throughput}{ends}{waiting}{counted}{busy}{_few_products(result)}"))
    elif result.throughput.why and (result.observed.verdict or not result.observed.why):  # else none was due
        rows.append(("throughput", f"not known: {result.throughput.why}"))
    first, last = result.loss
    if last is not None:
        rows.append(("loss", f"{units.number(first)} at first, {units.number(last)} at last"))
    elif "loss.last" in result.nonfinite:
        rows.append(("loss", f"{units.number(first)} at first, not finite at last"))
    final, skipped = result.loss_scale
    if final is not None:
        rows.append(("loss scale", f"{units.number(final, 8)}, {skipped or 0} steps skipped"))
    if result.peak_memory_bytes is not None:
        before = result.startup_memory_bytes or 0
        more = f", {units.size(before)} before the first timed step" if before > result.peak_memory_bytes else ""
        rows.append(("peak memory", f"{units.size(result.peak_memory_bytes)}{more}"))
    if profile := profile_of(result):
        rows.append(("profile", profile))
    if verdict := result.observed.verdict:
        why = result.observed.why
        if why and why in (result.reason or ""):  # which the headline gives
            why = ""
        said = "unknown, so not proved" if verdict == "unknown" else verdict
        rows.append(("proof", f"{said}{f': {why}' if why else ''}"))
    elif result.observed.why:
        rows.append(("proof", f"nothing to prove: {result.observed.why}"))
    return rows


def profile_of(result: ResultRecord) -> str:
    """What was profiled, where its trace is in the run folder, and the share of GPU time in tensor cores."""
    profile = result.profile
    if len(profile.steps) != 2:
        return ""
    first, last = profile.steps
    steps = f"steps {first} to {last}" if last > first else f"step {first}"
    if len(profile.instead_of) == 2:
        steps += f" (instead of {profile.instead_of[0]} to {profile.instead_of[1]})"
    viewer = "TensorBoard opens" if result.framework == "tensorflow" else "Perfetto and TensorBoard open"
    opens = {"framework": f", which {viewer}", "nsys": ", for nsys-ui", "ncu": ", for ncu-ui"}
    trace = f" in {profile.trace}{opens.get(profile.tool or '', '')}" if profile.trace else ""
    share = profile.tensor_core_share
    tensor = f"; {share:.1%} of GPU time in tensor-core kernels, by their names" if share is not None else ""
    return f"{steps}{trace}{tensor}"


MOST_RANKS = 8
"""Ranks, or GPUs, that keep others waiting of which each has a row."""


def gpus(folder: Path) -> list[tuple[str, str]]:
    """What the run's GPUs did, as they were sampled; nothing where none were."""
    from launcher.script import telemetry  # which `ls` of many runs does without

    samples = telemetry.read(folder)
    parts = []
    if used := telemetry.peak(samples.gpus, "memory"):
        total = telemetry.peak(samples.gpus, "memory_total")
        of = f" of {total / 1024:.1f}" if total else ""
        parts.append(f"{used / 1024:.1f}{of} GiB at most")
    for name, unit in (("utilization", "% busy"), ("power", " W")):
        value = telemetry.mean(samples.gpus, name)
        parts += [f"{value:.0f}{unit} on average"] if value is not None else []
    rows = [("GPUs", ", ".join(parts))] if parts else []
    newest = max((series.attempt for series in samples.gpus), default=0)
    for slow in telemetry.slow_gpus(samples.gpus)[:MOST_RANKS]:
        where = f"{slow.device} on {telemetry.node_of(folder, newest, slow.node)}"
        rows.append(("slow GPU", f"{where} runs at {slow.clock:.0f} MHz, the others at {slow.others:.0f} MHz"))
    return rows


def accuracy_of(result: ResultRecord) -> str:
    value = result.eval.get("accuracy")
    return "" if value is None else f"{value:.4f}"


def throughput_of(result: ResultRecord) -> str:
    """With its unit; empty where two steps were too few for it."""
    mean, unit = result.throughput.mean, result.throughput.unit
    return "" if mean is None else f"{units.number(mean)} {unit or 'samples/s'}"


RATES = ("TOKENS/S", "SAMPLES/S", "STEPS/S", "RATE")
"""What a column of throughputs can be called."""


def device_of(result: ResultRecord) -> str:
    """The GPU or the processor that a run used; empty where it is not known."""
    return result.hardware.get("gpu") or result.hardware.get("cpu") or ""


def settings_line(values: Mapping[str, Any]) -> str:
    """A mapping of settings as it would be typed."""
    return " ".join(f"{key}={show(value)}" for key, value in values.items() if value is not None)


def place_of(folder: Path) -> str:
    """Where a run's folder is, for people; one on another host as scp writes it."""
    if not run_roots.is_remote(str(folder.parent)):
        return str(folder)
    from launcher.runs import remote_record

    return remote_record.place(folder)
