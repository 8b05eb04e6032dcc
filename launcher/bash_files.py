"""The launcher's own bash: files that shellcheck reads, and that take all values as variables and arguments."""

from __future__ import annotations

import functools
import pkgutil


@functools.cache
def text(package: str, name: str) -> str:
    """The text of a file beside a package's modules, also where they are in a zip; without its line for shellcheck."""
    data = pkgutil.get_data(package, name)
    assert data is not None, f"{package} has no file {name}"
    return data.decode().removeprefix("# shellcheck shell=bash\n")
