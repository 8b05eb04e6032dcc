"""The digest of an image's name, from its registry. The runtimes' clients fetch; this fixes what they fetch."""

from __future__ import annotations

import http.client
import ipaddress
import json
import queue
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from email.message import Message
from typing import Any

from amp_launcher.typed import SettingsError
from launcher.containers.references import Image

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HOSTS = {"docker.io": "registry-1.docker.io"}
MAX_BYTES = 4 * 2**20
"""Of one answer; the largest manifest that registries themselves accept."""
SECONDS = 30.0
"""Without a byte of an answer."""
WHOLE_SECONDS = 120.0
"""For a whole answer."""


class PullError(Exception):
    """The image can't be fetched; the message is for people."""


def digest(image: Image, architecture: str) -> str:
    """The current digest of the image's name, asked without a key.

    Raises `SettingsError` if there is no such image or none for this architecture, `PullError` if the registry
    does not answer or wants a key.
    """
    if image.digest:
        return image.digest
    headers, body = _get(_manifest(image), image)
    digest_sent = headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest_sent):
        raise PullError(f"{image.registry} sends no digest for {image.reference}")
    if (headers.get("Content-Type") or "").partition(";")[0] in _INDEXES:
        _check_platform(image, body, architecture)
    return digest_sent


def _manifest(image: Image) -> str:
    host = _HOSTS.get(image.registry, image.registry)
    return f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{image.repository}/manifests/{image.tag}"


def _check_platform(image: Image, body: bytes, architecture: str) -> None:
    index = _object(body, image)
    manifests = index.get("manifests")
    platforms = [
        platform
        for manifest in (manifests if isinstance(manifests, list) else [])
        if isinstance(manifest, dict) and isinstance(platform := manifest.get("platform"), dict)
    ]
    names = {str(platform.get("architecture")) for platform in platforms if platform.get("os") == "linux"}
    made_for = sorted(name for name in names if re.fullmatch(r"[\w.-]{1,20}", name, re.ASCII))
    if architecture not in made_for:
        raise SettingsError(
            f"image={image.given} is made for {', '.join(made_for[:20]) or 'no Linux'} and this host is {architecture}"
        )


def _object(body: bytes, image: Image) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PullError(f"{image.registry} does not answer as a registry should, for {image.reference}")
    return value


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine: `localhost` or an address of the loopback network."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def check_target(url: str, asked_by: str) -> None:
    """Check a URL from an answer of `asked_by`: a remote registry can't point at a service of this machine. Raises
    `ValueError`."""
    asking = urllib.parse.urlsplit(asked_by)
    if is_loopback(_checked(url).netloc) and not is_loopback(asking.netloc):
        raise ValueError(f"{url[:200]!r} is on this machine, and {asking.hostname} is not")


def _checked(url: str) -> urllib.parse.SplitResult:
    """Raises `ValueError` unless it is an https URL, or http to this machine."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname or parts.username is not None:
        raise ValueError(f"{url[:200]!r} is not a URL of a host")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
        raise ValueError(f"{url[:200]!r} is neither https nor on this machine")
    return parts


def _read(url: str, headers: dict[str, str]) -> tuple[Message, bytes]:
    """Headers and body of the answer to a GET request. Raises `OSError`, `HTTPException` or `ValueError`."""
    direct = is_loopback(_checked(url).netloc)  # without a proxy
    request = urllib.request.Request(url, headers=headers)
    # Without redirects, which registries send for layers alone.
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler({} if direct else None))
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    answers: queue.SimpleQueue[tuple[Message, bytes] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with opener.open(request, timeout=SECONDS) as answer:
                answers.put((answer.headers, answer.read(MAX_BYTES + 1)))
        except Exception as error:
            answers.put(error)

    # A timeout of a socket is for one piece, of which there may be millions; nobody waits for this thread.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answered = answers.get(timeout=WHOLE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"its answer has not ended in {WHOLE_SECONDS:g} s") from None
    if isinstance(answered, Exception):
        raise answered
    if len(answered[1]) > MAX_BYTES:
        raise ValueError(f"an answer of more than {MAX_BYTES // 2**20} MiB")
    return answered


def _get(url: str, image: Image) -> tuple[Message, bytes]:
    accept = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))}
    try:
        try:
            return _read(url, accept)
        except urllib.error.HTTPError as error:
            challenges = error.headers.get_all("WWW-Authenticate", [])
            if error.code != 401 or not challenges:
                raise
            error.close()
        return _read(url, accept | _token(challenges, url, image))
    except urllib.error.HTTPError as error:
        error.close()
        raise _explained(error.code, image) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error) or type(error).__name__
        raise PullError(f"{image.registry} does not answer: {reason}") from None


def _token(challenges: Sequence[str], url: str, image: Image) -> dict[str, str]:
    """The header for the first challenge: a token that anybody gets; none where it wants a password.

    Source: https://distribution.github.io/distribution/spec/auth/token/.
    """
    kind, _, rest = challenges[0].partition(" ")
    if kind.lower() == "basic":
        return {}
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = fields.get("realm", "")
    check_target(realm, url)
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    _, body = _read(f"{realm}{'&' if '?' in realm else '?'}{query}", {})
    answer = _object(body, image)
    token = answer.get("token") or answer.get("access_token", "")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]*", token):
        raise PullError(f"{image.registry} sends an invalid token for {image.reference}")
    return {"Authorization": f"Bearer {token}"}


def _explained(code: int, image: Image) -> SettingsError | PullError:
    if code == 404:
        return SettingsError(f"image={image.given}: {image.registry} has no {image.reference}")
    if code in (401, 403):
        return PullError(
            f"{image.registry} gives {image.reference} out for a key alone: pull it by Apptainer's own login "
            f"(apptainer registry login docker://{image.registry}), and name the file, as image=FILE.sif"
        )
    # The server's own phrase is not shown: it could be any text.
    phrase = http.HTTPStatus(code).phrase if code in set(http.HTTPStatus) else ""
    return PullError(f"{image.registry} answers {code} {phrase}".rstrip() + f" for {image.reference}")
