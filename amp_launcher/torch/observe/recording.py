"""torch's profiler during an observed step, which gives way to the script's own."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_launcher.around.replaced import replaced

GAVE_WAY = "the script's own profiler was at work"
IN_A_THREAD = "torch's profiler starts in the main thread, and a thread trained"

_QUIET = "KINETO_LOG_LEVEL"
_warming_up = False
"""Whether a profiler was prepared and has not ended, as far as that was noted."""


@contextlib.contextmanager
def warm_ups_noted() -> Iterator[None]:
    """While open, a `Recording` gives way to a profiler of the script's that warms up, too. torch tells only of one
    that records, and crashes where another profiler begins and ends before it does."""
    profiler = torch.autograd.profiler
    with (
        replaced(profiler, "_prepare_profiler", _noting(profiler._prepare_profiler, True)),
        replaced(profiler, "_disable_profiler", _noting(profiler._disable_profiler, False)),
    ):
        yield


def _noting(original: Callable[..., Any], warming_up: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        global _warming_up
        _warming_up = warming_up
        return original(*args, **kwargs)

    return noting


class Recording:
    """A profiler of the dispatcher, with shapes, and of the GPU's kernels where it is in use, while it is entered. It
    gives way to the script's own: there is one at a time."""

    def __init__(self) -> None:
        self.profile: Any = None
        """None where there is none, as `missing` says."""
        self.missing = ""
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Recording:
        if torch.autograd._profiler_enabled() or _warming_up:
            self.missing = GAVE_WAY
            return self
        if threading.current_thread() is not threading.main_thread():  # it prints an error elsewhere
            self.missing = IN_A_THREAD
            return self
        device = "cuda" if torch.cuda.is_initialized() else None
        self.profile = torch.autograd.profiler.profile(record_shapes=True, use_kineto=True, use_device=device)
        with _quiet():
            self.profile.__enter__()
        self._open.callback(self._end)
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(torch.autograd.profiler, name)
            self._open.enter_context(replaced(torch.autograd.profiler, name, self._giving_way(original)))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Record no more, and leave the profiler to the script."""
        self._open.close()

    def _end(self) -> None:
        if self.profile is not None:
            self.profile.__exit__(None, None, None)

    def _giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            profile, self.profile = self.profile, None
            if profile is not None:
                self.missing = GAVE_WAY
                profile.__exit__(None, None, None)
            return original(*args, **kwargs)

        return start


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's profiler reads how much it prints once, when the first begins; else every step prints two lines. So too
    where the script has set the variable, as YOLOv5 does: alone it has no profiler. Processes that it starts find its
    own value."""
    before = os.environ.get(_QUIET)
    os.environ[_QUIET] = "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = before
