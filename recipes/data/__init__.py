"""Data sets as NumPy arrays, the same for every framework."""

import hashlib
from typing import Any

from amp_launcher.typed import SettingsError


class DataError(SettingsError):
    """A folder of data.dir that lacks files, or has broken ones."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "data.dir")


class DownloadError(SettingsError):
    """A file that can't be fetched."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "data.download")


def digest(*contents: Any) -> str:
    """SHA-256 of contiguous bytes or arrays, one after another, as `sha256:...`."""
    sha256 = hashlib.sha256()
    for content in contents:
        sha256.update(content)
    return f"sha256:{sha256.hexdigest()}"
