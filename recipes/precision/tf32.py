"""Whether float32 products may be rounded to TF32, with its 10-bit mantissa."""

from __future__ import annotations

from collections.abc import Mapping

from recipes.typed import SettingsError

NEEDS = (8, 0)
"""First compute capability with TF32: NVIDIA's Ampere."""


def resolve_tf32(
    tf32: bool | None, level: str, device: str, capability: tuple[int, int] | None, environ: Mapping[str, str]
) -> bool:
    """Whether TF32 is on: as asked, else off at o0 and on elsewhere, where the device has it.

    `device` is cpu or cuda; `capability` the GPU's compute capability. Raises `SettingsError` where TF32 was asked for
    and can't be had.
    """
    if device == "cpu":
        why = "a CPU has no TF32"
    elif capability is not None and capability < NEEDS:
        why = f"TF32 needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    elif environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        why = "NVIDIA_TF32_OVERRIDE=0 in the environment switches TF32 off"
    else:
        return level != "o0" if tf32 is None else tf32
    if tf32:
        raise SettingsError(f"tf32=true: {why}; say tf32=false", "tf32")
    return False
