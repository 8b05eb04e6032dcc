"""A duplex byte stream to a command on another machine: the interface of transports."""

from __future__ import annotations

from typing import Protocol

KEPT = 4096
"""Bytes of the end of stderr that are kept."""


class Stream(Protocol):
    """Standard input and output of a remote command. Every wait has a timeout."""

    def read(self, timeout: float) -> bytes:
        """At least one byte; empty once the command has closed its output, or the connection is gone. Raises `Stalled`
        after the timeout, in seconds."""

    def write(self, data: bytes, timeout: float) -> None:
        """Write all bytes; what nobody takes any more is dropped, and reading then shows the end and the complaint.
        Raises `Stalled` after the timeout."""

    def complaint(self) -> str:
        """The end of what the command printed to stderr."""

    def exit_code(self) -> int | None:
        """None while it is not known."""

    def close(self) -> None:
        """End the command's input and the connection."""


class Stalled(Exception):
    """Nothing was transferred within the timeout."""
