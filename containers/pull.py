"""Pulling an image for Apptainer once for any number of callers, completely or not at all. Its own client fetches."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amp_launcher.typed import SettingsError
from launcher.containers import registry, store
from launcher.containers.references import Image
from launcher.containers.registry import PullError as PullError
from launcher.containers.registry import is_loopback
from launcher.containers.runtime import Runtime

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """An image that is on this host."""

    name: str
    """Its path."""
    digest: str
    fetched: bool
    """Whether this call fetched it."""


def stored(image: Image, runtime: Runtime, cache: Path) -> str:
    """The file of an image that `pull` fetched for Apptainer, or empty. Asks no registry."""
    if image.form != "registry" or runtime.kind != "apptainer":
        return ""
    digest = image.digest or store.lookup(cache, image.reference)
    return _cached(cache, digest) if digest else ""


def _cached(cache: Path, digest: str) -> str:
    """The image of that digest in the cache, or nothing where it is broken. Raises `SettingsError` for another user's
    file."""
    path = store.path_of(cache, digest)
    try:
        why = store.untrusted(cache, path)
    except FileNotFoundError:
        return ""
    if why:
        raise SettingsError(f"{why}; delete it, or name another container.cache", "container.cache")
    return str(path) if store.is_complete(path) else ""


def to_come(image: Image, runtime: Runtime, cache: Path, architecture: str) -> tuple[str, str]:
    """Where `pull` would put this image, and what it would pull, by its current digest. Both are empty for runtimes
    without image files. Raises `SettingsError` and `PullError` as `pull` does."""
    if image.form != "registry" or runtime.kind != "apptainer":
        return "", ""
    digest = registry.digest(image, architecture)
    return str(store.path_of(cache, digest)), f"{image.registry}/{image.repository}@{digest}"


def pull(image: Image, runtime: Runtime, cache: Path, *, architecture: str, say: Say = lambda line: None) -> Pulled:
    """Pull the image. Concurrent calls fetch it once; a killed one leaves nothing that looks like an image.

    Raises `SettingsError` if there is no such image, `PullError` if it can't be fetched.
    """
    if image.form != "registry":
        raise SettingsError(f"image={image.given} is a file or folder; there is nothing to fetch")
    if runtime.kind != "apptainer":
        engine = runtime.kind in ("docker", "podman")
        instead = f"say {runtime.kind} pull {image.reference}" if engine else f"{runtime.kind} needs nothing fetched"
        raise SettingsError(f"image pull is for container=apptainer; {instead}", "container.kind")
    try:
        return _into_cache(image, runtime, cache, registry.digest(image, architecture), say)
    except OSError as error:
        raise PullError(f"{cache}: {error.strerror or error}; name a folder on another file system") from None


def _into_cache(image: Image, runtime: Runtime, cache: Path, digest: str, say: Say) -> Pulled:
    """The image of this digest as a file of Apptainer's, under its digest."""
    name, fetched = _cached(cache, digest), False
    if not name:
        key = digest.partition(":")[2]
        with (
            store.locked(cache, key, lambda: say(f"waiting for another pull of {image.given}")) as lock,
            store.part(cache, key) as folder,
        ):
            name = _cached(cache, digest)
            if not name:
                say(f"fetching {image.reference} ({digest})")
                _fetch(image, runtime, digest, folder, lock)
                name, fetched = store.publish(folder / "image.sif", store.path_of(cache, digest)), True
    if not image.digest and store.lookup(cache, image.reference) != digest:
        store.remember(cache, image.reference, digest)
    return Pulled(name=name, digest=digest, fetched=fetched)


def _fetch(image: Image, runtime: Runtime, digest: str, folder: Path, lock: int) -> None:
    """Fetch by Apptainer's client, its output to stderr. Raises `PullError` if it fails.

    It inherits the lock: if this process is killed, the next one waits for the client to end.
    """
    source = f"docker://{image.registry}/{image.repository}@{digest}"
    words = [*runtime.command, "pull", "--disable-cache", *(["--no-https"] if is_loopback(image.registry) else [])]
    # It unpacks the whole image, for which /tmp is often too small.
    environment = {**os.environ, "APPTAINER_TMPDIR": str(folder), "SINGULARITY_TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            [*words, str(folder / "image.sif"), source],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment,
            pass_fds=(lock,),
        )
    except OSError as error:
        raise PullError(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        raise PullError(f"{words[0]} could not fetch {image.reference} (exit code {done.returncode})")
