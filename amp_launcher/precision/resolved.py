"""A precision request resolved for a framework and a device: every `auto` decided, once, for planning and training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from amp_launcher.precision import operations
from amp_launcher.precision.checks import check_precision
from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.levels import Amp, Dtype, LossScale, named_operations
from amp_launcher.precision.support import Lists, Support, gemm_problem, support_for
from amp_launcher.typed import SettingsError

TF32_CAPABILITY = (8, 0)
"""First compute capability with TF32: NVIDIA's Ampere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPrecision:
    """The settings that a framework's `Precision` applies. It decides nothing by itself."""

    amp: Amp
    """As requested."""
    framework: str
    device: str
    """cpu or cuda."""
    capability: tuple[int, int] | None
    """A GPU's compute capability; None for a CPU, and where a GPU is planned for whose capability isn't known."""
    dtype: str
    """float32 at o0, else float16 or bfloat16."""
    mechanism: str
    """The mechanism of the level, such as `autocast`."""
    loss_scale: LossScale
    """Its mode is dynamic, static or none."""
    tf32: bool | None
    """Whether float32 products may be rounded to TF32; None around a script that sets its own switches."""
    xla: bool
    allow: tuple[str, ...]
    """The operation lists in force: torch's names in torch and Paddle; in TensorFlow its own, gradients included."""
    deny: tuple[str, ...]
    infer: tuple[str, ...]
    clear: tuple[str, ...]
    lists: Lists = "applied"
    parallel: str = "ddp"
    """How torch trains on several ranks: ddp or fsdp."""

    @property
    def level(self) -> str:
        return self.amp.level

    @property
    def gemm(self) -> str:
        """The number format of linear layers' products; half is the level's own."""
        return self.amp.gemm

    @property
    def master_weights(self) -> bool:
        """Whether the optimizer steps float32 masters of half-precision parameters."""
        return self.level == "o2" and self.amp.master_weights is not False


def resolve(
    amp: Amp,
    loss_scale: LossScale,
    *,
    framework: str,
    device: str,
    capability: tuple[int, int] | None,
    environ: Mapping[str, str],
    tf32: bool | None = None,
    xla: bool = False,
    parallel: str | None = None,
    static: bool = False,
    support: Callable[[str], Support] | None = None,
) -> ResolvedPrecision:
    """The request, resolved for `device` (cpu or cuda) with a GPU's compute `capability`, None where it isn't known.

    `environ` is the environment that the training will have; `support` takes the place of the support matrix, from the
    dtype, where the model is in a user's script; `static` is a static graph of Paddle's. Raises `SettingsError` for
    what can't be had.
    """
    check_precision(amp, loss_scale, framework)
    if amp.gemm != HALF and (why := gemm_problem(amp.gemm, device, capability)):
        raise SettingsError(why, "amp.gemm")
    dtype = resolve_dtype(amp.level, amp.dtype, device, capability, framework)
    if support is None:
        masters = amp.master_weights
        row = support_for(framework, amp.level, dtype, xla, device, masters, parallel, static)
    else:
        row = support(dtype)
    if row.unsupported:
        raise SettingsError(row.unsupported, "amp.level")
    if dtype != "float32" and (device == "cpu" or capability is not None):
        check_precision(dataclasses.replace(amp, dtype=dtype), loss_scale, framework)
    return ResolvedPrecision(
        amp=amp,
        framework=framework,
        device=device,
        capability=capability,
        dtype=dtype,
        mechanism=row.mechanism,
        loss_scale=resolve_scale(loss_scale, amp.level, dtype, amp.master_weights),
        tf32=resolve_tf32(tf32, amp.level, device, capability, environ),
        xla=xla,
        lists=row.lists,
        parallel=parallel or "ddp",
        **_lists(amp, framework),
    )


def _lists(amp: Amp, framework: str) -> dict[str, tuple[str, ...]]:
    if framework == "tensorflow":
        return operations.tensorflow_lists(named_operations(amp))
    allow, deny = operations.lists(amp.allow, amp.deny)
    return {"allow": allow, "deny": deny, "infer": (), "clear": ()}


def resolve_dtype(
    level: str, dtype: Dtype, device: str, capability: tuple[int, int] | None, framework: str = "torch"
) -> Literal["float32", "float16", "bfloat16"]:
    """`float32` at o0; else the dtype that `auto` means on this device.

    `capability` is the GPU's compute capability, for example (8, 0). Raises `SettingsError` where the device can't do
    what was asked. Source: NVIDIA's mixed precision training guide (tensor cores: fp16 from 7.0, bf16, TF32 from 8.0).
    """
    if level == "o0":
        return "float32"
    if device == "cpu":
        return "bfloat16" if dtype == "auto" else dtype
    if capability is not None and capability < (7, 0):
        raise SettingsError(
            f"amp={level} needs compute capability 7.0 for half-precision tensor cores, and this GPU has "
            f"{capability[0]}.{capability[1]}; say amp=o0"
        )
    if capability is not None and dtype == "bfloat16" and capability < (8, 0):
        raise SettingsError(
            f"amp.dtype=bfloat16 needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}; "
            "say amp.dtype=float16"
        )
    if dtype != "auto":
        return dtype
    if framework == "tensorflow" and level == "o1":
        return "float16"  # the CUDA graph rewrite knows no other
    return "bfloat16" if capability is None or capability >= (8, 0) else "float16"


def resolve_scale(scale: LossScale, level: str, dtype: str, master_weights: bool | None = None) -> LossScale:
    """The loss scale with `auto` decided: dynamic for float16 where float32 gradients or masters exist, else none."""
    if scale.mode != "auto":
        return scale
    scaled = dtype == "float16" and (level == "o1" or (level == "o2" and master_weights is not False))
    return dataclasses.replace(scale, mode="dynamic" if scaled else "none")


def resolve_tf32(
    tf32: bool | None, level: str, device: str, capability: tuple[int, int] | None, environ: Mapping[str, str]
) -> bool:
    """Whether TF32 is on: as asked, else off at o0 and on elsewhere, where the device has it.

    `device` is cpu or cuda; `capability` the GPU's compute capability. Raises `SettingsError` where TF32 was asked for
    and can't be had.
    """
    if device == "cpu":
        why = "a CPU has no TF32"
    elif capability is not None and capability < TF32_CAPABILITY:
        why = f"TF32 needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    elif environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        why = "NVIDIA_TF32_OVERRIDE=0 in the environment switches TF32 off"
    else:
        return level != "o0" if tf32 is None else tf32
    if tf32:
        raise SettingsError(f"tf32=true: {why}; say tf32=false, or amp=fp32 for amp=tf32")
    return False
