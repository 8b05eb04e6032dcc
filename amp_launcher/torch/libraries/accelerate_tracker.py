"""A tracker that gives the launcher what a script logs by accelerate.

from amp_launcher.torch.libraries.accelerate_tracker import JobTracker

accelerator = Accelerator(log_with=[JobTracker(), "tensorboard"])
accelerator.init_trackers("training")
accelerator.log({"train_loss": loss}, step=step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from amp_launcher.job import library


class JobTracker(GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Does nothing without the launcher, and for values that are logged without a step."""

    name = "amp-launcher"
    requires_logging_directory = False

    @property
    def tracker(self) -> JobTracker:
        return self

    def log(self, values: Mapping[str, Any], step: int | None = None, **more: Any) -> None:
        if step is not None:
            library.log(step, values)
