"""Has a script import its own project from the snapshot, not from the checkout of an editable install."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")


def extend(file: Path, plan: Mapping[str, Any]) -> None:
    """Add the root of the snapshot that holds `file`, and its `src`, to Python's path: before installed packages, after
    the standard library, which a project must not shadow. Without a snapshot nothing changes."""
    script = plan.get("script")
    if not script or script["in_image"]:
        return
    root = file.parents[len(Path(script["file"]).parts) - 2]  # the file is named as script/tools/train.py
    installed = (index for index, entry in enumerate(sys.path) if Path(entry).name in INSTALLED)
    index = next(installed, len(sys.path))
    sys.path[index:index] = [str(folder) for folder in (root, root / "src") if folder.is_dir()]
