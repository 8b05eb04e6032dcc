"""A script that ends its process itself: by `os._exit`, or by a program that it executes in its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amp_launcher.around.replaced import replaced


@contextlib.contextmanager
def watched(conclude: Callable[[int, str], int], reopen: Callable[[], None]) -> Iterator[None]:
    """While open, call `conclude` with the exit code and the executed program before this process ends; it returns the
    exit code. `reopen` is called where the program could not be executed. Processes that a script forks are not meant.
    """
    process, leave = os.getpid(), os._exit

    def exit_now(status: int) -> None:
        leave(conclude(status & 0xFF, "") if os.getpid() == process else status)

    def executing(execute: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *given: Any, **named: Any) -> Any:
            if os.getpid() != process or not Path(os.fsdecode(path)).is_file() or not os.access(path, os.X_OK):
                return execute(path, *given, **named)
            conclude(0, Path(os.fsdecode(path)).name)
            try:
                return execute(path, *given, **named)
            finally:  # it only returns by an error
                reopen()

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(os, "_exit", exit_now))
        for name in ("execv", "execve"):
            stack.enter_context(replaced(os, name, executing(getattr(os, name))))
        yield


def without_rest(observed: dict[str, Any], program: str) -> dict[str, Any]:
    """What was observed of a script that then executed another program, which is not. Python may go on training."""
    why = f"{observed['why']}; then it executed {program} in its place, which is not observed"
    proved = observed["verdict"] == "proved" and "python" in program
    return {**observed, "why": why, **({"verdict": "unknown"} if proved else {})}
