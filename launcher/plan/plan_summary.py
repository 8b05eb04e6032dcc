"""A plan in a line: what would run, and what it asks of its cluster. Pure."""

from __future__ import annotations

from amp_launcher.precision.gemm import FORMATS, HALF
from launcher.plan.model import Plan


def summary(plan: Plan) -> str:
    """One line: what would run, how and where."""
    batch = f", batch {plan.settings['batch']}" if plan.settings["batch"] else ""
    what = plan.script.line() if plan.script else plan.recipe
    devices = f"{plan.gpus} GPU{'s' * (plan.gpus > 1)}" if plan.gpus else plan.settings["device"]
    if len(plan.gpu_pool) > plan.gpus:
        devices += f" (free ones of {len(plan.gpu_pool)}, chosen when it starts)"
    nodes = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
    nodes += ", sharded (fsdp)" if plan.settings["parallel"] == "fsdp" else ""
    how = (
        f"in {plan.framework} at {mode(plan)}".removeprefix("in none ")
        if plan.mechanism != "none"
        else "without a mode"
    )
    return f"{what} {how}{batch}, {devices}{nodes}, {plan.host}"


def mode(plan: Plan) -> str:
    """The precision in words, as `o2 (half_model_fp32_masters), float16, dynamic loss scale`."""
    how = f" ({plan.mechanism})" if plan.mechanism else ""
    return f"{plan.settings['amp']['level']}{how}{_precision(plan)}"


def _precision(plan: Plan) -> str:
    """What `auto` became, as `, float16, dynamic loss scale, TF32 on`; empty for plans without it."""
    known = plan.precision
    if known is None:
        return ""
    parts = []
    if plan.settings["amp"]["level"] != "o0":
        parts.append(known.dtype or "float16 or bfloat16 by its GPU")
        gemm = plan.settings["amp"]["gemm"]
        parts += [f"{gemm} by {FORMATS[gemm].by}"] if gemm != HALF else []
        if known.loss_scale != "none":
            parts.append(f"{known.loss_scale} loss scale" if known.loss_scale else "a loss scale if float16")
    if plan.settings["device"] == "cuda":
        unknown = "by the script" if plan.script else "if the GPU has it"
        parts.append(f"TF32 {unknown if known.tf32 is None else 'on' if known.tf32 else 'off'}")
    return "".join(f", {part}" for part in parts)


def resources(plan: Plan) -> str:
    """What one run asks its cluster for, and what it leaves to the cluster; empty on this machine."""
    time = plan.cluster.get("time")
    limit = f"time limit {_count(int(time), 'minute') if time.isdecimal() else time}" if time else ""
    if plan.cluster["kind"] == "local":
        return limit
    devices = f"{_count(plan.gpus, f'{plan.gpu_type} GPU'.strip())} per node" if plan.gpus else "no GPU"
    asked = [_count(plan.nodes, "node"), devices]
    if plan.queue != "slurm":
        return ", ".join([*asked, *([limit] if limit else [])])
    cluster = plan.cluster
    asked += [f"{_count(cluster['cpus'], 'CPU')} per node"] if cluster["cpus"] else []
    if memory := cluster["mem"]:
        asked.append(f"{memory}{'M' if memory.isdigit() else ''} of memory per node")
    asked += [limit] if limit else []
    asked += [
        f"{key} {cluster[key]}" for key in ("partition", "account", "qos", "nodelist", "exclude") if cluster.get(key)
    ]
    if plan.preemption:
        asked.append(f"may be preempted ({plan.preemption.mode}, {plan.preemption.grace} s of grace)")
    left = [key for key in ("cpus", "mem", "time", "partition") if not cluster[key]]
    return ", ".join(asked) + (f"; the cluster decides {', '.join(left)}" if left else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
