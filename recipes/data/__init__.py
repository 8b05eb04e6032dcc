"""Data sets as NumPy arrays, the same for every framework."""

from recipes.typed import SettingsError


class DataError(SettingsError):
    """A folder of data.dir that lacks files, or has broken ones."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "data.dir")


class DownloadError(SettingsError):
    """A file that can't be fetched."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "data.download")
