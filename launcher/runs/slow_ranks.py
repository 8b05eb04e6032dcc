"""Which ranks keep the others waiting, by where each spends its time (`amp_launcher/pace.py` records it). Pure but for
reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.runs import store
from launcher.runs.schema import Pace

SLOWER = 1.2
"""How many times as fast all steps would be without what a slow rank does longer than the others."""


class SlowRank(NamedTuple):
    """A rank that waits less than the others, and what it does meanwhile."""

    rank: int
    node: str
    place: str
    """A line of the script; empty where it is no single one."""
    share: float
    """Of its time that it is there, or that it does not wait."""
    others: float
    """The median of the ranks."""


def read(folder: Path, attempt: int) -> list[Pace]:
    """What the ranks of an attempt left."""
    files = sorted((folder / "attempts" / str(attempt)).glob("pace-rank*.json"))
    return [pace for file in files if (pace := store.read(Pace, file)).rank is not None and pace.waits is not None]


def find(ranks: Sequence[Pace]) -> list[SlowRank]:
    """Those that are slow, the slowest first; none where they are most of the ranks, as nothing tells then who waits
    for whom."""
    if len(ranks) < 2:
        return []
    import statistics  # which takes longer to import than a listing's own files

    works = [1 - (one.waits or 0.0) for one in ranks]
    usual_work = statistics.median_low(works)  # of two ranks the faster one's
    places = {place for one in ranks for place in one.places}
    usual = {place: statistics.median_low(one.places.get(place, 0.0) for one in ranks) for place in places}
    found = []
    for one, work in zip(ranks, works, strict=True):
        if _is_long(max(works) - work):
            continue  # it waits for another one
        excess = {place: share - usual[place] for place, share in one.places.items()}
        place = max(excess, key=excess.__getitem__, default="")
        if _is_long(excess.get(place, 0.0)):
            found.append(SlowRank(one.rank or 0, one.node or "", place, one.places[place], usual[place]))
        elif _is_long(work - usual_work):
            found.append(SlowRank(one.rank or 0, one.node or "", "", work, usual_work))
    return sorted(found, key=lambda slow: slow.others - slow.share) if 2 * len(found) <= len(ranks) else []


def _is_long(excess: float) -> bool:
    """Whether a part of all steps is what only this rank does."""
    return excess >= 1 or 1 / (1 - excess) > SLOWER
