"""Two real users of one machine, by uid: whoever runs the tests has to be root to be either of them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import launcher

GROUP = 61000
"""A group that both are in."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


class User(NamedTuple):
    """A user without an entry in the password file, with a home of their own."""

    uid: int
    home: Path

    @property
    def name(self) -> str:
        return f"uid {self.uid}"

    def argv(self, *command: str | Path, environment: Mapping[str, str] | None = None, umask: int = 0o022) -> list[str]:
        """A command as this user: with these words in front of it."""
        variables = {
            "HOME": str(self.home),
            "USER": f"user{self.uid}",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(map(str, _paths())),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(environment or {}),
        }
        change = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", f"--groups={GROUP}"]
        words = [*change, "env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        return [*words, "bash", "-c", f'umask {umask:03o}; exec "$@"', "bash", *map(str, command)]

    def run(self, *command: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*command, **how),
            capture_output=True,
            text=True,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
        )

    def launcher(self, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """`python -m launcher` as this user types it."""
        return self.run(python(), "-m", "launcher", *words, **how)

    def write(self, path: Path, content: str | Mapping[str, Any], mode: int = 0o644) -> Path:
        """Write a file as this user does, with the folders that lead to it."""
        text = content if isinstance(content, str) else json.dumps(content)
        script = 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1" && chmod "$3" "$1"'
        done = self.run("bash", "-c", script, "bash", path, text, f"{mode:o}")
        assert done.returncode == 0, done.stderr
        return path


@functools.cache
def python() -> str:
    """A Python that others than root may run, of the version whose packages are here."""
    for path in (os.path.realpath(sys.executable), f"/usr/bin/python3.{sys.version_info.minor}"):
        as_another = ["setpriv", f"--reuid={GROUP}", f"--regid={GROUP}", "--clear-groups", "env"]
        if os.path.exists(path) and subprocess.run([*as_another, path, "-c", ""], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"no Python 3.{sys.version_info.minor} here that others than root may run")


def _paths() -> Sequence[Path]:
    """Where the launcher and what it imports lie."""
    return [Path(launcher.__file__).parents[1], *(Path(path) for path in sys.path if path.endswith("-packages"))]


def make(folder: Path, uid: int) -> User:
    """A user whose home is in that folder."""
    home = folder / f"home-{uid}"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    return User(uid, home)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user reaches, which tmp_path is not."""
    folder = Path(tempfile.mkdtemp(prefix="launcher-users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def alice(open_folder: Path) -> User:
    return make(open_folder, 61001)


@pytest.fixture
def mallory(open_folder: Path) -> User:
    return make(open_folder, 61002)
