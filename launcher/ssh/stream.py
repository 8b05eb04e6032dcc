"""A duplex byte stream to a command on another machine: what a transport gives, and how it fails."""

from __future__ import annotations

from typing import Protocol

KEPT = 4096
"""Bytes of what a command printed to stderr last."""


class Stream(Protocol):
    """Standard input and output of a command over there. Every wait has an end."""

    def read(self, timeout: float) -> bytes:
        """At least one byte as soon as there are some; empty once the command has closed its output.

        Raises `Stalled` where nothing came for so many seconds.
        """

    def write(self, data: bytes, timeout: float) -> None:
        """All of the bytes, in so many seconds. Raises `Stalled`, or `OSError` where the command or the connection is
        gone."""

    def complaint(self) -> str:
        """What the command printed to stderr, its end only."""

    def exit_code(self) -> int | None:
        """Of a command that has ended; None while that is not known."""

    def close(self) -> None:
        """End the command's input and the connection."""


class Stalled(OSError):
    """The network, or the machine at its other end, says nothing any more."""
