"""What a row needs before it runs: an environment by pip, its repository by git, its inputs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.scripts.table import Row


class Unavailable(Exception):
    """Something that a row needs could not be had."""


def python(row: Row, folder: Path) -> Path:
    """The Python of the row's environment, which is made where it is missing; ours where nothing is required."""
    if not row.requirements:
        return Path(sys.executable)
    text = "\n".join([sys.version, *sorted(row.requirements)])
    place = folder / "environments" / hashlib.sha256(text.encode()).hexdigest()[:12]
    complete = place / "complete"
    if not complete.exists():
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)], folder, "its environment")
        _run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", *row.requirements], folder, "pip")
        complete.touch()
    return place / "bin" / "python"


def site_packages(python: Path) -> Path:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(_run(asked, Path.cwd(), "its environment").strip())


def source(row: Row, python: Path, folder: Path) -> Path:
    """A new folder with the row's repository at its commit, if it has one, its edits and its inputs."""
    place = folder / row.name / "source"
    shutil.rmtree(place.parent, ignore_errors=True)
    place.mkdir(parents=True)
    if row.repository:
        _fetch(row, place)
    for name, old, new in row.edits:
        file = place / row.folder / name
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise Unavailable(f"{name} holds {old!r} {text.count(old)} times, not once")
        file.write_text(text.replace(old, new), encoding="utf-8")
    if row.inputs:
        _run([str(python), "-c", row.inputs], place / row.folder, "its inputs")
    return place


def _fetch(row: Row, place: Path) -> None:
    def git(*words: str) -> None:
        _run(["git", *words], place, f"git {words[0]}")

    git("init", "-q")
    git("remote", "add", "origin", row.repository)
    git("fetch", "-q", "--depth=1", "--filter=blob:none", "origin", row.commit)
    if row.folders:
        git("sparse-checkout", "set", *row.folders)
    git("checkout", "-q", "--detach", row.commit)


def _run(argv: list[str], cwd: Path, what: str) -> str:
    cwd.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{what}: {lines[-1][:300]}")
    return done.stdout
