"""Pulling an image once for any number of callers, completely or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from containers import registry, store
from containers.bounded_http import is_loopback
from containers.find import Ask, find_image
from containers.references import Image
from containers.registry import NGC_USER, Credentials, NeedsKey, RegistryError
from containers.runtime import Runtime
from recipes.typed import SettingsError

Say = Callable[[str], None]


_AUTHFILE = (1, 3)
"""The first Apptainer with `--authfile` and a key by standard input. Older ones, and Singularity, get the key in their
environment, which only the user can read."""


class PullError(Exception):
    """The image could not be fetched; the message is for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """An image that is on this host."""

    name: str
    """A path, or the engine's own name for it."""
    digest: str
    fetched: bool
    """Whether this call fetched it."""


def read_key(path: Path, key: str = "image") -> Credentials:
    """Credentials from a file that only its owner may read: a key of NGC's, or `user:password`."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", key) from None
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"{path} can be read by others; run chmod 600 {path}", key)
    user, colon, password = text.partition(":")
    return Credentials(user=user, password=password) if colon else Credentials(user=NGC_USER, password=text)


def stored(image: Image, runtime: Runtime, cache: Path) -> str:
    """The file of an image that `pull` fetched, for runtimes of image files, or empty. Asks no registry."""
    if image.form != "registry" or runtime.kind not in store.SUFFIXES:
        return ""
    digest = image.digest or store.lookup(cache, image.reference)
    return _cached(cache, digest, runtime.kind) if digest else ""


def _cached(cache: Path, digest: str, kind: str) -> str:
    """The image of that digest in the cache, or nothing. Raises `SettingsError` for another user's file."""
    path = store.path_of(cache, digest, kind)
    try:
        why = store.stranger(cache, path)
    except FileNotFoundError:
        return ""
    if why:
        raise SettingsError(f"{why}; delete it, or name another container.cache", "container.cache")
    return str(path)


def to_come(image: Image, runtime: Runtime, cache: Path, architecture: str) -> tuple[str, str]:
    """Where `pull` would put this image, and what it would pull, by its current digest. Both are empty for runtimes
    without image files. Raises `SettingsError` and `PullError` as `pull` does."""
    if image.form != "registry" or runtime.kind != "apptainer":
        return "", ""
    try:
        digest = registry.digest(image, architecture)
    except RegistryError as error:
        raise PullError(str(error)) from None
    return str(store.path_of(cache, digest, runtime.kind)), f"{image.registry}/{image.repository}@{digest}"


def pull(
    image: Image,
    runtime: Runtime,
    cache: Path,
    *,
    architecture: str,
    ask: Ask,
    credentials: Credentials | None = None,
    say: Say = lambda line: None,
) -> Pulled:
    """Pull the image. Concurrent calls fetch it once; a killed one leaves nothing that looks like an image.

    A private image is fetched with `credentials`, or else by the engine's own login.

    Raises `SettingsError` if there is no such image, `PullError` if it can't be fetched.
    """
    if image.form != "registry":
        raise SettingsError(f"image={image.given} is a file or folder; there is nothing to fetch", "image")
    if runtime.kind == "none":
        raise SettingsError(f"image={image.given} needs a container runtime; say container=", "container.kind")
    try:
        digest = registry.digest(image, architecture, credentials)
    except RegistryError as error:
        if isinstance(error, NeedsKey) and runtime.kind in ("docker", "podman"):
            return _by_own_login(image, runtime, ask, str(error), say)
        raise PullError(str(error)) from None
    fetched = False
    name = _present(image, digest, runtime, cache, ask)
    if not name:
        try:
            with store.locked(cache, digest, lambda: say(f"waiting for another pull of {image.given}")) as lock:
                name = _present(image, digest, runtime, cache, ask)
                if not name:
                    say(f"fetching {image.reference} ({digest})")
                    with store.part(cache, digest) as folder:
                        name = _FETCHERS[runtime.kind](_Fetch(image, digest, runtime, cache, folder, lock, credentials))
                    fetched = True
        except OSError as error:
            raise PullError(f"{cache}: {error.strerror or error}; name a folder on another file system") from None
    if runtime.kind in store.SUFFIXES and store.lookup(cache, image.reference) != digest:
        store.remember(cache, image.reference, digest)
    return Pulled(name=name, digest=digest, fetched=fetched)


def _by_own_login(image: Image, runtime: Runtime, ask: Ask, refusal: str, say: Say) -> Pulled:
    """Pull with the engine's own login. Its credential store is not read here."""
    before = find_image(image.reference, runtime, ask).digests
    say(f"fetching {image.reference} with {runtime.kind}'s own login")
    done = subprocess.run([*runtime.command, "pull", *_tls(runtime, image), image.reference], stdout=2, check=False)
    after = find_image(image.reference, runtime, ask).digests
    if done.returncode or not after:
        raise PullError(f"{refusal}; {runtime.kind} login {image.registry}, or name a file with the key, as key=FILE")
    new = [digest for digest in after if digest not in before]
    return Pulled(name=image.reference, digest=(new or after)[0], fetched=bool(new))


def _tls(runtime: Runtime, image: Image) -> list[str]:
    """Docker uses no TLS for a loopback registry by itself."""
    return ["--tls-verify=false"] if runtime.kind == "podman" and is_loopback(image.registry) else []


def _present(image: Image, digest: str, runtime: Runtime, cache: Path, ask: Ask) -> str:
    """The image's name for the runtime if it has exactly this digest."""
    if runtime.kind in store.SUFFIXES:
        return _cached(cache, digest, runtime.kind)
    name = image.reference if not image.tag else f"{image.registry}/{image.repository}:{image.tag}"
    return name if digest in find_image(name, runtime, ask).digests else ""


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch under the digest's lock."""

    image: Image
    digest: str
    runtime: Runtime
    cache: Path
    folder: Path
    """Empty, private, and deleted afterwards."""
    lock: int
    credentials: Credentials | None

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a client, its output to stderr. Raises `PullError` if it fails.

        The client inherits the lock: if this process is killed, the next one waits for the client to end.
        """
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, **environment},
                pass_fds=(self.lock,),
            )
        except OSError as error:
            raise PullError(f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            raise PullError(f"{words[0]} could not fetch {self.image.reference} (exit code {done.returncode})")


def _apptainer(fetch: _Fetch) -> str:
    image, credentials, client = fetch.image, fetch.credentials, fetch.runtime.command
    aside, target = fetch.folder / "image.sif", store.path_of(fetch.cache, fetch.digest, "apptainer")
    # It unpacks the whole image, for which /tmp is often too small.
    environment = {f"{prefix}_TMPDIR": str(fetch.folder) for prefix in ("APPTAINER", "SINGULARITY")}
    words = [*client, "pull", "--disable-cache", *(["--no-https"] if is_loopback(image.registry) else [])]
    if credentials and fetch.runtime.product == "apptainer" and fetch.runtime.version >= _AUTHFILE:
        # A login for this pull only: the user's configuration does not change.
        environment["APPTAINER_CONFIGDIR"] = str(fetch.folder)
        login = ["registry", "login", f"--authfile={fetch.folder}/auth.json", f"--username={credentials.user}"]
        address = f"docker://{image.registry}"
        _log_in([*client, *login, "--password-stdin", address], image, credentials, environment)
        words.append(f"--authfile={fetch.folder}/auth.json")
    elif credentials:
        for prefix in ("APPTAINER", "SINGULARITY"):
            environment[f"{prefix}_DOCKER_USERNAME"] = credentials.user
            environment[f"{prefix}_DOCKER_PASSWORD"] = credentials.password
    fetch.run([*words, str(aside), f"docker://{image.registry}/{image.repository}@{fetch.digest}"], environment)
    return store.publish(aside, target)


def _enroot(fetch: _Fetch) -> str:
    image, credentials = fetch.image, fetch.credentials
    if not image.tag:
        raise SettingsError(f"image={image.given}: enroot fetches by tag; name one instead of the digest", "image")
    aside, target = fetch.folder / "image.sqsh", store.path_of(fetch.cache, fetch.digest, "pyxis")
    environment = {"ENROOT_TEMP_PATH": str(fetch.folder)}
    user = ""
    if credentials:
        file = fetch.folder / ".credentials"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(f"machine {image.registry} login {credentials.user} password {credentials.password}\n")
        environment["ENROOT_CONFIG_PATH"] = str(fetch.folder)
        user = f"{credentials.user}@"
    source = f"docker://{user}{image.registry}#{image.repository}:{image.tag}"
    fetch.run(["enroot", "import", "--output", str(aside), source], environment)
    return store.publish(aside, target)


def _engine(fetch: _Fetch) -> str:
    image, credentials = fetch.image, fetch.credentials
    client, environment = fetch.runtime.command, {}
    exact = f"{image.registry}/{image.repository}@{fetch.digest}"
    plain = _tls(fetch.runtime, image)
    if credentials:
        # A login for this pull only: the user's configuration does not change.
        environment = {"DOCKER_CONFIG": str(fetch.folder), "REGISTRY_AUTH_FILE": str(fetch.folder / "auth.json")}
        login = ["login", *plain, "--username", credentials.user, "--password-stdin", image.registry]
        _log_in([*client, *login], image, credentials, environment)
    fetch.run([*client, "pull", *plain, exact], environment)
    if image.tag:
        fetch.run([*client, "tag", exact, f"{image.registry}/{image.repository}:{image.tag}"], environment)
        return f"{image.registry}/{image.repository}:{image.tag}"
    return exact


def _log_in(words: Sequence[str], image: Image, credentials: Credentials, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        words,
        input=credentials.password.encode(),
        capture_output=True,
        env={**os.environ, **environment},
    )
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip()
        raise PullError(f"{image.registry} does not accept the key: {complaint}")


_FETCHERS: Mapping[str, Callable[[_Fetch], str]] = {
    "docker": _engine,
    "podman": _engine,
    "apptainer": _apptainer,
    "pyxis": _enroot,
}
