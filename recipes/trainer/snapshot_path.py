"""Where a script imports its own project from: the snapshot, not the checkout that an editable install points to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")


def extend(file: Path, plan: Mapping[str, Any]) -> None:
    """Put the root of the snapshot that holds `file`, and `src` in it, into Python's path, before installed packages
    and behind the standard library, which nothing of a project may shadow. Without a snapshot nothing changes."""
    script = plan.get("script")
    if not script or script["in_image"]:
        return
    root = file.parents[len(Path(script["file"]).parts) - 2]  # the file is named as script/tools/train.py
    found = [index for index, entry in enumerate(sys.path) if Path(entry).name in INSTALLED]
    at = found[0] if found else len(sys.path)
    sys.path[at:at] = [str(folder) for folder in (root, root / "src") if folder.is_dir()]
