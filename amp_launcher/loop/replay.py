"""The replay of some steps of another run, for the launcher's `verify`, and what it says of that run.

The launcher puts into the replay's folder what it needs of the run: the checkpoints that it may start from among its
own checkpoints, and in `original/` the run's record (`step_record`) and the checkpoint of the last step, as far
as these exist.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher import step_record
from amp_launcher.loop import checkpoint
from amp_launcher.loop.protocols import State
from amp_launcher.step_record import Row
from amp_launcher.typed import leaves
from amp_launcher.world.world import ProcessGroup

ORIGINAL = "original"
SAME, DIFFERS, NOT_COMPARABLE = "same", "differs", "not comparable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The steps to replay."""

    run: str
    """The run's id."""
    first: int
    """Step of the checkpoint to start from, or of an older one where that is damaged; 0 is the run's beginning."""
    step: int
    """The last step to replay."""


class Difference(NamedTuple):
    """The first step of a rank that differs, and what of it does."""

    step: int
    rank: int
    tensors: Sequence[str]
    """The tensors that differ, in the order of the record."""
    of: int
    """How many were compared."""
    others: Sequence[str]
    """`loss`, `gradient norm`: what else differs."""
    saved: bool = False
    """Whether the checkpoint of that step differs, rather than the record."""


def request_of(plan: Mapping[str, Any]) -> Request | None:
    """The replay that a plan asks for; None for any other run."""
    values = plan.get("replay")
    return Request(run=values["run"], first=values["first"], step=values["step"]) if values else None


class Replay:
    """Compares a replay with the run. Every method is collective."""

    def __init__(self, request: Request, folder: Path, group: ProcessGroup, source: State) -> None:
        """Raises `SettingsErrorOfAll` for a checkpoint of another schema."""
        self.request = request
        self._folder = folder
        self._group = group
        self._source = source
        self._recorded = step_record.path_of(folder / ORIGINAL, 0).exists()
        self._saved: tuple[Mapping[str, bytes], Mapping[str, Any]] | None = None
        last = group.from_rank_zero(lambda: checkpoint.newest(folder / ORIGINAL / "checkpoints", warn=print))
        self._shards = last is not None and last.shards > 0
        if group.rank == 0 and last and not self._shards:
            self._saved = source.saved_digests(last)

    def not_comparable(self, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        """result.json's "verify" where the two can't be compared, else None. `facts` are this rank's."""
        obstacles = list(
            dict.fromkeys(why for by_rank in self._group.gather(self._obstacles(facts)) for why in by_rank)
        )
        if not obstacles:
            return None
        self._clear()
        return self._record(NOT_COMPARABLE, "; ".join(obstacles))

    def verdict(self) -> dict[str, Any]:
        """result.json's "verify", after the last step."""
        differences = [Difference(*values) for values in self._group.gather(self._difference()) if values is not None]
        first = min(differences, default=None, key=lambda difference: (difference.step, difference.rank))
        if first is None:
            record = self._record(SAME, self._same(len(self._source.digests())))
            self._clear()
            return record
        difference = {
            "step": first.step,
            "rank": first.rank,
            "tensor": first.tensors[0] if first.tensors else None,
            "tensors": len(first.tensors),
            "of": first.of,
            "others": list(first.others),
        }
        return self._record(DIFFERS, self._differs(first), difference)

    def _record(self, verdict: str, why: str, difference: Mapping[str, Any] | None = None) -> dict[str, Any]:
        steps = {"run": self.request.run, "first": self.request.first, "step": self.request.step}
        return {"verdict": verdict, "why": why, **steps, "recorded": self._recorded, "difference": difference}

    def _obstacles(self, facts: Mapping[str, Any]) -> list[str]:
        """Why this rank's part can't be compared."""
        request = self.request
        saved = self._group.broadcast(None if self._saved is None else list(self._saved[1].get("facts", ())))
        if self._recorded:
            try:
                before = [row for row in self._rows(ORIGINAL) if row.step > request.first]
            except (OSError, ValueError) as error:
                return [str(error)]
            kinds = [facts for facts, _ in itertools.groupby(row.facts for row in before)]
            missing = [] if len(before) == request.step - request.first else ["the record lacks some steps"]
            if before and not before[-1].digests:
                inside = f"step {before[-1].step}, which is not the last of an execution"
                ends = [row.step for row in before if row.digests]
                missing.append(f"the record has no tensors of {inside}{f'; say step={ends[-1]}' if ends else ''}")
        else:
            kinds = saved[self._group.rank : self._group.rank + 1] if saved else []
            missing = [] if kinds else [f"the checkpoint of step {request.step} is damaged"]
        return [*missing, *(why for kind in kinds for why in differing(kind, facts))]

    def _clear(self) -> None:
        """Delete, on rank 0, the checkpoints that the replay needs no longer: links to those of the run, which would
        keep their disk space from being freed. Where something differs they are evidence."""
        if self._group.rank == 0:
            for folder in (self._folder / "checkpoints", self._folder / ORIGINAL):
                shutil.rmtree(folder, ignore_errors=True)

    def _rows(self, folder: str) -> list[Row]:
        path = step_record.path_of(self._folder / folder, self._group.rank)
        return [row for row in step_record.read(path) if self.request.first <= row.step <= self.request.step]

    def _difference(self) -> Difference | None:
        """The first difference that this rank sees."""
        if self._recorded:
            replayed = {row.step: row for row in self._rows("")}
            for row in self._rows(ORIGINAL):
                if row.step in replayed and (difference := self._compare(row, replayed[row.step])):
                    return difference
        if self._saved is not None:
            now, saved = self._source.digests(), self._saved[0]
            if unlike := _unlike(saved, now):
                return Difference(self.request.step, self._group.rank, unlike, len(saved), (), saved=True)
        return None

    def _compare(self, before: Row, now: Row) -> Difference | None:
        both = before.digests and now.digests  # else it is not the last of an execution
        unlike = _unlike(before.digests, now.digests) if both else []
        pairs = (("loss", before.loss, now.loss), ("gradient norm", before.grad_norm, now.grad_norm))
        replayed = before.step > self.request.first  # else it is the checkpoint's, which has no loss
        others = [name for name, one, other in pairs if one != other and replayed]
        rank = self._group.rank
        return Difference(before.step, rank, unlike, len(before.digests), others) if unlike or others else None

    def _same(self, count: int) -> str:
        request, size = self.request, self._group.size
        start = f"replayed from {_start(request.first)}"
        if not self._recorded:
            return (
                f"the checkpoint of step {request.step} of {request.run}, {start}, is bit-identical in {count} tensors"
            )
        several = request.step > request.first + 1
        steps = f"steps {request.first + 1} to {request.step}" if several else f"step {request.step}"
        norm = ", gradient norm" if any(row.grad_norm for row in self._rows(ORIGINAL)) else ""
        what = f"loss{norm} and {count} tensors{f' on each of {size} ranks' if size > 1 else ''}"
        shards = f"; its checkpoint of step {request.step} is in shards, which are not compared" if self._shards else ""
        return f"{steps} of {request.run}, {start}, {'are' if several else 'is'} bit-identical in {what}{shards}"

    def _differs(self, first: Difference) -> str:
        request = self.request
        where = f" on rank {first.rank}" if self._group.size > 1 else ""
        names = f"{first.tensors[0]}{where} ({len(first.tensors)} of {first.of} tensors)" if first.tensors else ""
        others = " and ".join(first.others)
        what = f"{names}, and in its {others}" if names and others else names or f"its {others}{where}"
        if first.saved:
            know = "" if self._recorded else "; verify.record=true would tell the first step that does"
            return f"the checkpoint of step {first.step} of {request.run} differs in {what}{know}"
        return f"step {first.step} of {request.run} is the first that differs, in {what}"


def _start(first: int) -> str:
    return f"the checkpoint of step {first}" if first else "its beginning"


def _unlike(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> list[str]:
    """Names of tensors that differ, or that only one of the two has."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


_WORDS = {
    "cpu": "CPU",
    "device": "device",
    "threads": "number of threads",
    "world_size": "number of ranks",
    "data": "data digest",
    "code": "code digest",
}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, the facts that decide on the last bits of the arithmetic, and differ. A run that does not repeat
    itself can't be compared at all."""
    if not before.get("exact"):
        return ["the run is best_effort; deterministic=true makes one that repeats bit by bit"]
    one, other = leaves(before), leaves(now)
    return [
        f"{_WORDS.get(key, key.removeprefix('versions.'))}: {one.get(key)} in the run, {other.get(key)} in the replay"
        for key in sorted({*one, *other} - {"exact"})
        if one.get(key) != other.get(key)
    ]
