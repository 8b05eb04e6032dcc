"""What the calls of a precision share in all frameworks."""

from __future__ import annotations

import numbers
import sys
from typing import Any

from amp_launcher.precision.older_names import OlderNames


class Calls(OlderNames):
    """The base of each framework's `Precision`."""

    _mechanism: Any

    @property
    def scale(self) -> float | None:
        """The loss scale, the lowest of several, None where there is none. Waits for the device."""
        scale: float | None = self._mechanism.scale
        return scale

    @property
    def skipped_total(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return int(self._mechanism.skipped_total)


def say_mode(asked: str, dtype: object, device: object) -> None:
    """Say on stderr which mode a script took that names none and runs without the launcher."""
    print(
        f"amp-launcher: Precision() outside of the launcher is {asked} ({dtype}) on {device}; "
        'Precision("o2") names a mode',
        file=sys.stderr,
    )


def refuse_clip(clip: object, tensor: type) -> None:
    """Raise for a norm that would stop training in silence. A framework's own `tensor` is not looked into."""
    if clip is None or isinstance(clip, tensor):
        return
    if isinstance(clip, bool) or not isinstance(clip, numbers.Real):
        raise TypeError(f"clip= is the largest norm of the gradients, a number, and was given {clip!r}")
    if not float(clip) > 0:
        raise ValueError(
            f"clip={clip} would leave nothing of the gradients: it is their largest norm, a number above 0; where 0 "
            "means no clipping, write clip=value or None"
        )
