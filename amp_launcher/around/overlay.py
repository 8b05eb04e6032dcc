"""A script's project under the names that it has in its checkout, with the code of the run's snapshot.

Modules are found where plain Python finds them, and `__file__` and `__path__` say so; data beside them is there. Their
source is the snapshot's, which the run began with, whatever was edited, moved or deleted since. What the snapshot lacks
(extension modules that were built, files that git ignores) is the checkout's. Compiled files are read and written as
plain Python does where a module is unchanged, and nowhere else.

Processes that multiprocessing starts anew, by spawn or forkserver, install the same by the command that starts them.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import runpy
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import spec_from_file_location
from multiprocessing import util
from types import ModuleType
from typing import Any

from amp_launcher.around import child_python

_LOADERS: tuple[tuple[Any, list[str]], ...] = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


class Overlay:
    """The snapshot of a checkout, laid over it."""

    def __init__(self, root: str, kept: str) -> None:
        """`root` is the folder of the checkout, `kept` that of the snapshot; the same where there is no checkout."""
        self.root, self.kept = root, kept
        self._kept_folder = functools.cache(self._kept_folder_of)

    def install(self) -> None:
        """Import, and start further processes, by this overlay from now on."""
        if self.root == self.kept:
            return
        self._read_sources()
        sys.path_hooks.insert(0, self._finder)
        for entry in [entry for entry in sys.path_importer_cache if self._kept_folder(entry)]:
            del sys.path_importer_cache[entry]
        setattr(runpy, "io", _Opener(self))  # noqa: B010  # which the main file of a spawned process is read by
        self._tell_processes()

    def changed(self, path: str) -> bytes | None:
        """The snapshot's text of a file that is another one in the checkout by now; None for any other path."""
        if not (folder := self._kept_folder(os.path.dirname(path))):
            return None
        try:
            with open(os.path.join(folder, os.path.basename(path)), "rb") as stream:
                text = stream.read()
        except OSError:
            return None
        try:
            with open(path, "rb") as stream:
                return None if stream.read() == text else text
        except OSError:
            return text

    def _kept_folder_of(self, folder: str) -> str:
        """The snapshot's folder for one of the checkout's, which may be named by a link; empty if it has none."""
        for named in (os.path.abspath(folder), os.path.realpath(folder)):
            if named == self.root or named.startswith(f"{self.root}/"):
                kept = f"{self.kept}{named[len(self.root) :]}"
                if os.path.isdir(kept):
                    return kept
        return ""

    def _finder(self, folder: str) -> _Finder:
        """The path hook of the checkout's folders. Raises `ImportError` for any other."""
        if kept := self._kept_folder(folder):
            return _Finder(folder, kept)
        raise ImportError("not a folder of the snapshot", path=folder)

    def _read_sources(self) -> None:
        """Have Python's own loader read the snapshot's text in place of one that was edited since, and neither read nor
        write compiled files of it."""
        get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

        def of_source(path: Any) -> bytes | None:
            name = os.fspath(path)
            return self.changed(name) if name.endswith(tuple(SOURCE_SUFFIXES)) else None

        def get_snapshot_data(loader: SourceFileLoader, path: Any) -> bytes:
            text = of_source(path)
            if text is None:
                return get_data(loader, path)
            remember_lines(os.fspath(path), text)
            return text

        def get_path_stats(loader: SourceFileLoader, path: Any) -> Any:
            if of_source(path) is not None:
                raise OSError("the module is loaded without a compiled file")
            return path_stats(loader, path)

        SourceFileLoader.get_data = get_snapshot_data  # type: ignore[method-assign, assignment]  # Python's own
        SourceFileLoader.path_stats = get_path_stats  # type: ignore[method-assign, assignment]  # Python's own

    def _tell_processes(self) -> None:
        """Install the overlay in each Python that multiprocessing starts, before anything of the script."""
        install = f"from amp_launcher.around import overlay; overlay.Overlay({self.root!r}, {self.kept!r}).install(); "
        util.spawnv_passfds = child_python.after(install, util.spawnv_passfds)


class _Finder(FileFinder):
    """Finds modules in a folder of the checkout: those of the snapshot, then others as Python does."""

    def __init__(self, path: str, kept: str) -> None:
        super().__init__(path, *_LOADERS)
        self._kept = kept

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        here, kept = os.path.join(self.path, name), os.path.join(self._kept, name)
        if os.path.isfile(f"{kept}/__init__.py"):
            return spec_from_file_location(fullname, f"{here}/__init__.py", submodule_search_locations=[here])
        is_built = any(os.path.isfile(f"{here}{suffix}") for suffix in EXTENSION_SUFFIXES)
        if os.path.isfile(f"{kept}.py") and not is_built:
            return spec_from_file_location(fullname, f"{here}.py")
        found = super().find_spec(fullname, target)
        if found is None and os.path.isdir(kept):
            found = ModuleSpec(fullname, None)
            found.submodule_search_locations = [here]
        return found


class LastResort:
    """Finds modules of the project that no entry of `sys.path` has: at the root of the code, and in its `src`.

    `python FILE` would fail there, so each folder is named, once. A folder without `__init__.py` is no module here: a
    script may ask for a package that isn't installed, and have data of that name.
    """

    def __init__(self, root: str, kept: str) -> None:
        self._folders = [(root, kept), (f"{root}/src", f"{kept}/src")]

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or "." in fullname:
            return None
        for here, kept in self._folders:
            known = any(os.path.isfile(f"{kept}/{name}.py") for name in (fullname, f"{fullname}/__init__"))
            if known and here not in sys.path:
                sys.path.append(here)
                note = f"{fullname} is imported from {here}, which plain Python would not search; it now ends sys.path"
                print(f"script: {note}", file=sys.stderr)
                return PathFinder.find_spec(fullname, [here], target)
        return None


class _Opener:
    """What `runpy` uses of `io`: it reads a file to run as the overlay has it."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def open_code(self, path: str) -> io.BufferedIOBase:
        text = self._overlay.changed(path)
        if text is None:
            return io.open_code(path)  # type: ignore[return-value]
        remember_lines(path, text)
        return io.BytesIO(text)


def remember_lines(path: str, text: bytes) -> None:
    """Have tracebacks and `inspect` show a module's lines as they ran."""
    try:
        lines = io.TextIOWrapper(io.BytesIO(text), _encoding(text)).readlines()
    except (SyntaxError, UnicodeDecodeError, LookupError):  # which the import itself will report
        return
    linecache.cache[path] = (len(text), None, lines, path)  # without a time: it is not looked at again


def _encoding(text: bytes) -> str:
    import tokenize

    return tokenize.detect_encoding(io.BytesIO(text).readline)[0]
