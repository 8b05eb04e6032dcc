"""The thread of a script that is observed: the first that called the model or took a step."""

from __future__ import annotations

import os
import threading

from amp_launcher.torch.observe.roles import in_thread_of_autograd

TOLD_AT = 10
"""Optimizer step at which a script is warned whose other threads took all of them."""
IN_A_THREAD = (
    "no optimizer step was taken in the thread that is observed, the first that called the model or took a step"
)


class ObservedThread:
    """At first the thread that makes this object."""

    def __init__(self) -> None:
        self._thread = os.getpid(), threading.get_ident()
        self.steps_elsewhere = 0
        """Optimizer steps that other threads took."""

    def is_elsewhere(self) -> bool:
        """Whether this is another thread or process. What autograd's own threads run is their caller's."""
        here = os.getpid(), threading.get_ident()
        return here != self._thread and not (here[0] == self._thread[0] and in_thread_of_autograd())

    def step(self, steps: int, nothing_observed: bool) -> bool:
        """Whether the last of so many optimizer steps was taken elsewhere. As long as nothing was observed, and all
        were, this thread is observed from then on."""
        if not self.is_elsewhere():
            return False
        self.steps_elsewhere += 1
        if nothing_observed and os.getpid() == self._thread[0] and self.steps_elsewhere == steps:
            self._thread = os.getpid(), threading.get_ident()
            return False
        return True
