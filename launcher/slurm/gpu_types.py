"""What the names that a site gives its GPUs in GRES tell of them, before a job has seen any. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

Capability = tuple[int, int]

# Source: NVIDIA, "CUDA GPU Compute Capability" (https://developer.nvidia.com/cuda-gpus).
_CAPABILITIES: dict[str, Capability] = {
    **dict.fromkeys(("k80",), (3, 7)),
    **dict.fromkeys(("p100",), (6, 0)),
    **dict.fromkeys(("p4", "p40"), (6, 1)),
    **dict.fromkeys(("v100", "v100s"), (7, 0)),
    **dict.fromkeys(("t4",), (7, 5)),
    **dict.fromkeys(("a100", "a800", "a30"), (8, 0)),
    **dict.fromkeys(("a2", "a10", "a10g", "a16", "a40", "a6000"), (8, 6)),
    **dict.fromkeys(("l4", "l40", "l40s"), (8, 9)),
    **dict.fromkeys(("h100", "h200", "h800", "gh200"), (9, 0)),
    **dict.fromkeys(("b200", "gb200"), (10, 0)),
}


def capability(types: Iterable[str]) -> Capability | None:
    """The highest compute capability among GPUs of these names, as `a100`, `tesla_v100-sxm2-32gb` or `a100_1g.10gb`.

    So nothing is refused that one of them could do. None where there is none, or where a name tells nothing.
    """
    found = [_of_name(each) for each in types]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _of_name(name: str) -> Capability | None:
    parts = re.split(r"[^a-z0-9]+", name.lower())
    return next((_CAPABILITIES[each] for each in parts if each in _CAPABILITIES), None)
