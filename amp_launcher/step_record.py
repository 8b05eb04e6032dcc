"""The record of `verify.record=true`: loss, gradient norm and a digest of each tensor, step by step and bit by bit.

One file of JSON lines for each rank, `verify/rank-N.jsonl` in the run folder. A line with "tensors" has their names,
and "facts", which decide whether a replay can be compared; it holds for the lines of steps after it. Those have the
digests of all tensors, 8 bytes each in that order, in base64, and floats as `float.hex` writes them, with every bit.

Standard library only: the launcher reads it too.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher import records
from amp_launcher.run_folder import naming, replacing

SCHEMA = 1
FOLDER = "verify"
BYTES = 8
"""Length of a digest."""


def path_of(run: Path, rank: int) -> Path:
    """The record of a rank, in a run folder."""
    return run / FOLDER / f"rank-{rank}.jsonl"


class Row(NamedTuple):
    """One step of one rank."""

    step: int
    loss: str | None
    grad_norm: str | None
    """None where the recipe computes none."""
    digests: Mapping[str, bytes]
    """Of each tensor after the step, by name; empty for all but the last step of an execution of several."""
    facts: Mapping[str, Any]


class StepRecord:
    """Writes the record of one rank. Steps that an earlier attempt did after its last checkpoint are cut off."""

    def __init__(self, run: Path, rank: int, facts: Mapping[str, Any], first: int) -> None:
        """The record goes on after step `first`."""
        self._path = path_of(run, rank)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._facts = facts
        self._names: Sequence[str] = ()
        self._digests: dict[int, bytes] = {}
        _cut(self._path, first)

    def add(self, step: int, digests: Mapping[str, bytes]) -> None:
        """Note the digests after a step; its line is written with its loss."""
        if tuple(digests) != self._names:
            self._names = tuple(digests)
            header = {"schema": SCHEMA, "facts": dict(self._facts), "tensors": list(self._names)}
            self._append([header])
        self._digests[step] = b"".join(digests.values())

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the lines of steps whose rows of metrics are known."""
        self._append(
            [
                {
                    "step": row["step"],
                    "loss": _hex(row["loss"]),
                    "grad_norm": _hex(row["grad_norm"]),
                    "digests": base64.b64encode(self._digests.pop(row["step"], b"")).decode(),
                }
                for row in rows
            ]
        )

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with naming(self._path), open(self._path, "a", opener=records.record) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def read(path: Path) -> Iterator[Row]:
    """The rows of a record. Raises `OSError` where there is none, `ValueError` for a damaged line."""
    names: Sequence[str] = ()
    facts: Mapping[str, Any] = {}
    with open(path) as file:
        for line in file:
            if not line.endswith("\n"):
                return  # the run was killed while it wrote this one
            try:
                values = json.loads(line)
                if "tensors" in values:
                    names, facts = values["tensors"], values["facts"]
                    continue
                joined = base64.b64decode(values["digests"], validate=True)
                if joined and len(joined) != BYTES * len(names):
                    raise ValueError("digests of another number of tensors")
                digests = {name: joined[BYTES * at : BYTES * (at + 1)] for at, name in enumerate(names) if joined}
                yield Row(int(values["step"]), values["loss"], values["grad_norm"], digests, facts)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is damaged: {error}") from None


def _hex(value: float | None) -> str | None:
    return None if value is None else float(value).hex()


def _cut(path: Path, first: int) -> None:
    """Keep the lines up to step `first`. An attempt that was treated as dead and still writes has the old file."""
    if not path.exists():
        return
    with open(path, "rb") as old, replacing(path) as new:
        for line in old:
            if _step(line) > first:
                break
            new.write(line)


def _step(line: bytes) -> float:
    """The step of a line, 0 of a header; infinite where the line was not written to its end."""
    try:
        return float(json.loads(line).get("step", 0))
    except (ValueError, AttributeError):
        return math.inf
