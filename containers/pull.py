"""Pulling an image for Apptainer once for any number of callers, completely or not at all. Its own client fetches."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_launcher.typed import SettingsError
from launcher.containers import registry, store
from launcher.containers.references import Image
from launcher.containers.registry import NGC_USER, Credentials, is_loopback
from launcher.containers.registry import PullError as PullError
from launcher.containers.runtime import Runtime

Say = Callable[[str], None]

_AUTHFILE = (1, 3)
"""The first Apptainer with `--authfile` and a key by standard input. Older ones, and Singularity, get the key in their
environment, which only the user can read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """An image that is on this host."""

    name: str
    """Its path."""
    digest: str
    fetched: bool
    """Whether this call fetched it."""


def read_key(path: Path) -> Credentials:
    """Credentials from a file that only its owner may read: a key of NGC's, or `user:password`."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", "key") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"{path} can be read by others; run chmod 600 {path}", "key")
    user, colon, password = text.partition(":")
    return Credentials(user=user, password=password) if colon else Credentials(user=NGC_USER, password=text)


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


def pull(
    image: Image,
    runtime: Runtime,
    cache: Path,
    *,
    architecture: str,
    credentials: Credentials | None = None,
    say: Say = lambda line: None,
) -> Pulled:
    """Pull the image. Concurrent calls fetch it once; a killed one leaves nothing that looks like an image.

    Raises `SettingsError` if there is no such image, `PullError` if it can't be fetched.
    """
    if image.form != "registry":
        raise SettingsError(f"image={image.given} is a file or folder; there is nothing to fetch", "image")
    if runtime.kind != "apptainer":
        engine = runtime.kind in ("docker", "podman")
        instead = f"say {runtime.kind} pull {image.reference}" if engine else f"{runtime.kind} needs nothing fetched"
        raise SettingsError(f"image pull is for container=apptainer; {instead}", "container.kind")
    try:
        return _into_cache(image, runtime, cache, registry.digest(image, architecture, credentials), credentials, say)
    except OSError as error:
        raise PullError(f"{cache}: {error.strerror or error}; name a folder on another file system") from None


@dataclass(frozen=True, slots=True)
class _Client:
    """A client that fetches while a lock is held."""

    image: Image
    folder: Path
    """Empty, private, and deleted afterwards."""
    lock: int

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run it, its output to stderr. Raises `PullError` if it fails.

        It inherits the lock: if this process is killed, the next one waits for the client to end.
        """
        environment = {**os.environ, **environment}
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=2, env=environment, pass_fds=(self.lock,), check=False
            )
        except OSError as error:
            raise PullError(f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            code = done.returncode
            raise PullError(f"{words[0]} could not fetch {self.image.reference} (exit code {code})")

    def log_in(self, words: Sequence[str], credentials: Credentials, environment: Mapping[str, str]) -> None:
        """Run a client's login, for this pull only: the user's configuration does not change."""
        environment = {**os.environ, **environment}
        done = subprocess.run(
            words, input=credentials.password.encode(), capture_output=True, env=environment, check=False
        )
        if done.returncode:
            complaint = done.stderr.decode(errors="replace").strip()
            raise PullError(f"{self.image.registry} does not accept the key: {complaint}")


def _into_cache(
    image: Image, runtime: Runtime, cache: Path, digest: str, credentials: Credentials | None, say: Say
) -> Pulled:
    """The image of this digest as a file of Apptainer's, under its digest."""
    name, fetched = _cached(cache, digest), False
    if not name:
        key = digest.partition(":")[2]
        with (
            store.locked(cache, key, lambda: say(f"waiting for another pull of {image.given}")) as lock,
            store.part(cache, key) as folder,
        ):
            client, name = _Client(image, folder, lock), _cached(cache, digest)
            if not name:
                say(f"fetching {image.reference} ({digest})")
                aside = client.folder / "image.sif"
                _apptainer(
                    client, runtime, f"docker://{image.registry}/{image.repository}@{digest}", aside, credentials
                )
                name, fetched = store.publish(aside, store.path_of(cache, digest)), True
    if not image.digest and store.lookup(cache, image.reference) != digest:
        store.remember(cache, image.reference, digest)
    return Pulled(name=name, digest=digest, fetched=fetched)


def _apptainer(client: _Client, runtime: Runtime, source: str, target: Path, credentials: Credentials | None) -> None:
    registry_name, folder, command = client.image.registry, client.folder, runtime.command
    # It unpacks the whole image, for which /tmp is often too small.
    environment = {f"{prefix}_TMPDIR": str(folder) for prefix in ("APPTAINER", "SINGULARITY")}
    words = [*command, "pull", "--disable-cache", *(["--no-https"] if is_loopback(registry_name) else [])]
    if credentials and runtime.product == "apptainer" and runtime.version >= _AUTHFILE:
        environment["APPTAINER_CONFIGDIR"] = str(folder)
        login = ["registry", "login", f"--authfile={folder}/auth.json", f"--username={credentials.user}"]
        client.log_in([*command, *login, "--password-stdin", f"docker://{registry_name}"], credentials, environment)
        words.append(f"--authfile={folder}/auth.json")
    elif credentials:
        for prefix in ("APPTAINER", "SINGULARITY"):
            environment[f"{prefix}_DOCKER_USERNAME"] = credentials.user
            environment[f"{prefix}_DOCKER_PASSWORD"] = credentials.password
    client.run([*words, str(target), source], environment)
