"""A host over SSH as a submitit executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.executors.base import PlanExecutor


class SshExecutor(PlanExecutor):
    """Hands runs to another host, where they start now: `SshExecutor("me@host:port")`.

    `folder` is a path there. `host` may be left out where all plans are made elsewhere.
    """

    kind = "ssh"

    def __init__(self, host: str | None = None, folder: str | Path | None = None, words: Sequence[str] = ()) -> None:
        super().__init__(folder, (*([f"cluster.host={host}"] if host else ()), *words))
