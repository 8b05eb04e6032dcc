"""The support matrix: the mechanism that carries a level out in a framework on a device, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amp_launcher.precision.gemm import FORMATS, older

Lists = Literal["applied", "observed", "refused"]
"""How `amp.deny` is treated. Where a script or its library applies the precision, an operation on the list may run in
float32, which is only observed; where the precision is applied around a script, the list is refused."""

SHARDING_TORCH = (2, 9)
STATIC_ON_CPU = ("static_bf16", "static_pure_bf16")
"""Mechanisms of Paddle's static graphs on a CPU: at o1, and where the whole model is in bfloat16."""
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""Switches on TensorFlow's part for oneDNN, in which the graph rewrite to bfloat16 is, before TensorFlow is imported.
It is on by itself where a CPU has instructions for such products. Seen with TensorFlow 2.21 on a CPU with AVX2 alone:
off, the rewrite did nothing; on, products ran in bfloat16."""
KERAS_BACKEND = "KERAS_BACKEND"
"""Selects the framework of Keras, before that is imported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """One cell of the support matrix."""

    mechanism: str = ""
    unsupported: str = ""
    """Why there is no mechanism, and what to do instead."""
    lists: Lists = "applied"


def support_for(
    framework: str,
    level: str,
    dtype: str,
    xla: bool,
    device: str,
    master_weights: bool | None = None,
    parallel: str | None = None,
    static: bool = False,
) -> Support:
    """The mechanism of `level` in `framework`, with the dtype resolved (`float32` at o0) and a known device.

    `parallel` is ddp or fsdp in torch; None is ddp there, and all that the other frameworks have. `static` is a static
    graph of Paddle's.
    """
    why = _unsupported(framework, level, dtype, xla, device, parallel)
    if why:
        return Support(unsupported=why)
    if level == "o0":
        return Support(mechanism="float32")
    if framework == "tensorflow":
        return Support(mechanism="grappler" if level == "o1" else "keras_policy")
    without_masters = level == "o2" and master_weights is False
    if framework == "torch":
        with_masters = "sharded_fp32_masters" if parallel == "fsdp" else "half_model_fp32_masters"
        by_level = {"o1": "autocast", "o2": with_masters, "o3": "half_model"}
        return Support(mechanism="half_model_no_masters" if without_masters else by_level[level])
    if device == "cpu":
        return _on_paddles_cpu(level, dtype, static, without_masters)
    by_level = {"o1": "auto_cast", "o2": "decorate_auto_cast", "o3": "decorate_no_masters"}
    return Support(mechanism=by_level["o3" if without_masters else level])


def _on_paddles_cpu(level: str, dtype: str, static: bool, without_masters: bool) -> Support:
    """What `paddle.static.amp.bf16` does. Seen with Paddle 3.3: its kernels for a CPU leave masters as they are."""
    if not static:
        why = "on a CPU Paddle applies mixed precision to static graphs alone"
        instead = "recipe=simplenet train.api=static has one; else run on a GPU or say amp=o0"
    elif dtype == "float16":
        why, instead = "on a CPU Paddle's static graphs have bfloat16 alone", "say amp.dtype=bfloat16"
    elif level == "o2" and not without_masters:
        why, instead = "on a CPU Paddle steps no float32 masters", "say amp.master_weights=false, or amp=o1"
    else:
        at_o1, whole_model = STATIC_ON_CPU
        return Support(mechanism=at_o1 if level == "o1" else whole_model)
    return Support(unsupported=f"{why}; {instead}")


def sharding_problem(torch: str) -> str:
    """Why that version of torch can't shard a model (parallel=fsdp); empty where it can. Older ones don't train on a
    CPU this way, or have `fully_shard` elsewhere."""
    first = ".".join(map(str, SHARDING_TORCH))
    return (
        f"parallel=fsdp needs torch {first} or newer, and this is {torch}; say parallel=ddp"
        if older(torch, SHARDING_TORCH)
        else ""
    )


def gemm_problem(gemm: str, device: str, capability: tuple[int, int] | None) -> str:
    """Why a number format of `precision.gemm` has no kernels in torch; empty where it has. `capability` None is
    not known."""
    wanted, named = FORMATS[gemm], f"amp.gemm={gemm}"
    if device == "cpu" and wanted.cpu == "no":
        return f"{named} has no kernels for a CPU; say amp=fp8, which has"
    if capability is None:
        return ""
    have = ".".join(map(str, capability))
    if capability < wanted.capability:
        need = ".".join(map(str, wanted.capability))
        instead = "amp=fp8" if FORMATS["fp8-tensorwise"].capability <= capability else "amp=o1 or amp=o2"
        return f"{named} needs compute capability {need}, and this GPU has {have}; say {instead}"
    if wanted.below is not None and capability >= wanted.below:
        end = ".".join(map(str, wanted.below))
        kernels = f"torchao has no kernels for compute capability {end} and above"
        return f"{named}: {kernels}, and this GPU has {have}; say amp=fp8"
    return ""


def _unsupported(framework: str, level: str, dtype: str, xla: bool, device: str, parallel: str | None) -> str:
    if parallel and framework != "torch":
        return f"parallel={parallel} is torch's; leave it out"
    if xla and framework == "torch":
        return "xla=true is TensorFlow's compiler; for torch say compile=true"
    if xla and framework == "paddle":
        return "xla=true is TensorFlow's compiler; Paddle has no counterpart here"
    if level == "o0":
        return ""
    if framework == "tensorflow" and level == "o1":
        if device == "cpu" and dtype == "float16":
            return "TensorFlow's graph rewrite is bfloat16 only on a CPU; say amp.dtype=bfloat16"
        if device == "cuda" and dtype == "bfloat16":
            return "TensorFlow's graph rewrite is float16 only on a GPU; say amp.dtype=float16"
        if device == "cpu" and xla:
            return "XLA bypasses the graph rewrite on a CPU and runs float32; say xla=false"
    elif framework == "tensorflow" and device == "cpu" and xla:
        return "XLA on a CPU runs half-precision layers in float32; say xla=false"
    return ""
