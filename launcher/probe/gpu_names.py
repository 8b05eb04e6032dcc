"""Compute capability from the name of a GPU: a site's name in GRES, or that of an old driver.

Pure. Source: NVIDIA, "CUDA GPU Compute Capability" (https://developer.nvidia.com/cuda-gpus).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Capability = tuple[int, int]

_CAPABILITIES: dict[str, Capability] = {
    **dict.fromkeys(("k40", "k40m"), (3, 5)),
    **dict.fromkeys(("k80",), (3, 7)),
    **dict.fromkeys(("p100",), (6, 0)),
    **dict.fromkeys(("p4", "p40", "p6000"), (6, 1)),
    **dict.fromkeys(("v100", "v100s", "gv100"), (7, 0)),
    **dict.fromkeys(("t4", "quadro"), (7, 5)),
    **dict.fromkeys(("a100", "a800", "a30"), (8, 0)),
    **dict.fromkeys(("a2", "a10", "a10g", "a16", "a40", "a2000", "a4000", "a4500", "a5000", "a5500", "a6000"), (8, 6)),
    **dict.fromkeys(("l4", "l20", "l40", "l40s", "ada"), (8, 9)),
    **dict.fromkeys(("h20", "h100", "h200", "h800", "gh200"), (9, 0)),
    **dict.fromkeys(("b200", "gb200"), (10, 0)),
    **dict.fromkeys(("b300", "gb300"), (10, 3)),
    **dict.fromkeys(("blackwell",), (12, 0)),
    **dict.fromkeys(("gb10",), (12, 1)),
}
"""By a word of the name. The Quadro cards with tensor cores are the RTX ones, of Turing."""
_GEFORCE = {"10": (6, 1), "16": (7, 5), "20": (7, 5), "30": (8, 6), "40": (8, 9), "50": (12, 0)}
"""By the first two of the four digits; the last two tell GeForce from other names with four digits."""
_GEFORCE_NAME = re.compile(r"(?:rtx|gtx)?(10|16|20|30|40|50)[5-9]0(?:ti|super|d)*")


def capability(types: Iterable[str]) -> Capability | None:
    """The highest compute capability among GPUs of these names, as `a100`, `tesla_v100-sxm2-32gb` or `a100_1g.10gb`: a
    request that one of them can carry out is not refused. None if there are none, or one is unknown."""
    capabilities = [of_name(name) for name in types]
    known = [capability for capability in capabilities if capability is not None]
    return max(known) if known and len(known) == len(capabilities) else None


def is_of_type(name: str, kind: str) -> bool:
    """Whether a GPU that its driver calls `name` is of that type, as `a100`, `a100_80gb` or `rtx3090`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    runs = {"".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, len(words) + 1)}
    return runs.issuperset(re.findall(r"[a-z0-9]+", kind.lower()))


def of_name(name: str) -> Capability | None:
    """The compute capability of a GPU of that name; None if it is unknown."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    if "quadro" in words and "rtx" not in words:
        return None  # five generations are called Quadro
    for word in words:
        if word in _CAPABILITIES:
            return _CAPABILITIES[word]
        if match := _GEFORCE_NAME.fullmatch(word):
            return _GEFORCE[match[1]]
    return None
