"""Where torch.compile computes in other dtypes than eager torch."""

from __future__ import annotations

import torch
import torch._functorch.config as functorch_config  # torch documents its settings under this name and no other

from amp_launcher.precision.levels import Amp
from amp_launcher.typed import SettingsError

TRACES_MODES = "2.6"
"""First torch that traces function modes; before it, compiled code runs as if the operation lists were empty."""


def make_compilable(amp: Amp, compile: bool) -> None:
    """Make compiled backwards compute as eager ones do; with `compile` raise `SettingsError` where this torch can't.

    The compiler traces backward together with forward, and by default under forward's autocast: what was kept in
    float32 would have its gradients computed in half precision. Without autocast, as in eager backwards, each
    gradient is computed in the dtype of its forward. The switch is for the whole process.
    """
    has_switch = hasattr(functorch_config, "backward_pass_autocast")
    if has_switch and amp.level != "o0":
        functorch_config.backward_pass_autocast = "off"
    for key in ("allow", "deny", "keep_fp32"):
        if not compile or not getattr(amp, key):
            continue
        if key != "keep_fp32" and torch.__version__ < TRACES_MODES:
            _refuse(key, "passes operation lists over")
        if key != "allow" and not has_switch:
            _refuse(key, "computes the gradients of what is kept in float32 in half precision")


def _refuse(key: str, why: str) -> None:
    raise SettingsError(
        f"amp.{key} with compile=true: the compiler of torch {torch.__version__} {why}; torch 2.8 or newer doesn't; "
        "say compile=false",
        f"amp.{key}",
    )
