"""What a Python's torch was built for: its CUDA, and the GPUs that it has code for.

Metadata does not tell: the default wheel of PyPI names no CUDA in its version. torch itself does, and takes seconds to
import, so the answer is kept in `STATE/launcher/builds/`, a small file for each torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from launcher.containers.programs import output
from launcher.probe.facts import TorchBuild
from launcher.runs import run_roots, store

_LOCATE = "import importlib.util as u; s = u.find_spec('torch'); print((s and s.origin) or '')"
_ASK = (
    "import json, torch\n"
    "flags = getattr(torch._C, '_cuda_getArchFlags', lambda: None)()\n"  # get_arch_list is empty without a driver
    "print(json.dumps({'cuda': torch.version.cuda or '', 'architectures': (flags or '').split()}))\n"
)
_CUDA, _ARCHITECTURE = re.compile(r"(\d{1,3}\.\d{1,3})?"), re.compile(r"(sm|compute)_\d{2,4}[a-z]?")


def read(python: str) -> TorchBuild | None:
    """The build of that Python's torch; None where it has none, or can't be asked."""
    origin = (output([python, "-c", _LOCATE], folder="/") or "").strip()
    try:
        status = os.stat(Path(origin).parent / "version.py")
    except OSError:
        return None
    key = f"{origin}\0{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    kept = Path(run_roots.state_folder(), "builds", f"{hashlib.sha256(key.encode()).hexdigest()}.json")
    if (known := _build(store.read_or_empty(kept))) is not None:
        return known
    try:
        values = json.loads((output([python, "-c", _ASK], folder="/") or "").strip().rpartition("\n")[2])
    except ValueError:
        return None
    if (build := _build(values)) is not None:
        try:
            run_roots.make_private(kept.parent)
            store.write_json(kept, {"schema": 1, **values})
        except OSError:
            pass  # a home that can't be written to: it is asked again next time
    return build


def _build(values: object) -> TorchBuild | None:
    if not isinstance(values, dict):
        return None
    cuda, architectures = values.get("cuda"), values.get("architectures")
    if not isinstance(cuda, str) or not _CUDA.fullmatch(cuda) or not isinstance(architectures, list):
        return None
    named = tuple(name for name in architectures if isinstance(name, str) and _ARCHITECTURE.fullmatch(name))
    return TorchBuild(cuda=cuda, architectures=named)
