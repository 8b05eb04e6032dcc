"""Paths as people type them."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import UsageError


def expanded(named: str) -> Path:
    """The path with its `~` or `~user` expanded. Raises `UsageError` where nobody knows what that is."""
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise UsageError(f"{named}: there is no home folder to find it in; set HOME, or name paths in full") from None
