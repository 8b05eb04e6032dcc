"""Peak memory of timed steps, apart from what start-up took.

Before the first timed step cuDNN tries its algorithms, each with a workspace, and compilers run; an observed step keeps
more than another one, and an evaluation has batches of its own.
"""

from __future__ import annotations

from amp_launcher.world.device import Device
from amp_launcher.world.world import ProcessGroup


class PeakMemory:
    """Follows the device's peak through a run: `enter` says what runs next. Bytes."""

    def __init__(self, device: Device) -> None:
        self.startup: int | None = None
        """The most before the first timed step; None until that begins."""
        self._device = device
        self._timing = False
        self._timed = 0

    def enter(self, *, timed: bool) -> None:
        """What runs next is a timed step, or anything else. An execution that turns out to compile counts as timed."""
        if timed == self._timing:
            return
        peak = self._device.peak_memory()
        if self._timing:
            self._timed = max(self._timed, peak)
        elif self.startup is None:
            self.startup = peak
        self._device.reset_peak_memory()
        self._timing = timed

    def peak(self) -> int:
        """The most in timed steps so far; before the first one, in all that ran."""
        if self.startup is None or self._timing:
            return max(self._timed, self._device.peak_memory())
        return self._timed

    def fields(self, group: ProcessGroup | None = None) -> dict[str, int | None]:
        """result.json's, the most of any rank of the group; of this rank without one. Collective with one."""
        ranks = [(self.peak(), self.startup)] if group is None else group.gather((self.peak(), self.startup))
        return {
            "peak_memory_bytes": max(peak for peak, _ in ranks),
            "startup_memory_bytes": max((startup for _, startup in ranks if startup is not None), default=None),
        }
