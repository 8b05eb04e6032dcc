"""Asking a registry which image a name means today. The clients fetch; this only asks, so that what is fetched is
known by its digest before anything is."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from containers.references import Image
from recipes.typed import SettingsError

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HOSTS = {"docker.io": "registry-1.docker.io"}
_SECONDS = 30
NGC_USER = "$oauthtoken"
"""The user name that goes with a key of NGC's."""


class RegistryError(Exception):
    """The registry can't be used; the message is for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """For a private image. Shows neither in messages nor in representations."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


def is_loopback(registry: str) -> bool:
    """Whether the registry is on this machine, where clients speak HTTP without being told to."""
    host = registry.partition(":")[0]
    return host == "localhost" or host.startswith("127.")


def digest(image: Image, architecture: str, credentials: Credentials | None = None) -> str:
    """The digest of what the image's name means now.

    Raises `SettingsError` if there is no such image or none for this architecture, `RegistryError` if the registry
    does not answer or wants a key.
    """
    if image.digest:
        return image.digest
    host = _HOSTS.get(image.registry, image.registry)
    scheme = "http" if is_loopback(host) else "https"
    url = f"{scheme}://{host}/v2/{image.repository}/manifests/{image.tag}"
    headers, body = _get(url, image, credentials)
    found = headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise RegistryError(f"{image.registry} gives no digest for {image.reference}")
    if (headers.get("Content-Type") or "").partition(";")[0] in _INDEXES:
        _check_platform(image, json.loads(body), architecture)
    return found


def _check_platform(image: Image, index: Mapping[str, Any], architecture: str) -> None:
    platforms = [each.get("platform", {}) for each in index.get("manifests", [])]
    made_for = sorted({str(each.get("architecture")) for each in platforms if each.get("os") == "linux"})
    if architecture not in made_for:
        raise SettingsError(
            f"image={image.given} is made for {', '.join(made_for) or 'no Linux'} and this host is {architecture}",
            "image",
        )


def _get(url: str, image: Image, credentials: Credentials | None) -> tuple[Message, bytes]:
    accept = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))}
    try:
        return _open(url, accept)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge:
            raise _explained(error, image, credentials) from None
    except (urllib.error.URLError, OSError) as error:
        raise RegistryError(f"{image.registry} does not answer: {getattr(error, 'reason', error)}") from None
    try:
        return _open(url, {**accept, "Authorization": _authorization(challenge, credentials)})
    except urllib.error.HTTPError as error:
        raise _explained(error, image, credentials) from None
    except (urllib.error.URLError, OSError) as error:
        raise RegistryError(f"{image.registry} does not answer: {getattr(error, 'reason', error)}") from None


def _authorization(challenge: str, credentials: Credentials | None) -> str:
    """What to send after a challenge: the credentials themselves, or a token got with them or anonymously."""
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic":
        return _basic(credentials) if credentials else ""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    headers = {"Authorization": _basic(credentials)} if credentials else {}
    _, body = _open(f"{fields.get('realm', '')}?{query}", headers)
    answer = json.loads(body)
    return f"Bearer {answer.get('token') or answer.get('access_token', '')}"


def _basic(credentials: Credentials) -> str:
    return "Basic " + base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()


def _open(url: str, headers: Mapping[str, str]) -> tuple[Message, bytes]:
    request = urllib.request.Request(url, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return answer.headers, answer.read()


def _explained(
    error: urllib.error.HTTPError, image: Image, credentials: Credentials | None
) -> SettingsError | RegistryError:
    if error.code == 404:
        return SettingsError(f"image={image.given}: {image.registry} has no {image.reference}", "image")
    if error.code in (401, 403):
        key = "the key is not accepted" if credentials else "it wants a key, and none was given"
        return RegistryError(f"{image.registry} does not give out {image.reference}: {key}")
    return RegistryError(f"{image.registry} answers {error.code} {error.reason} for {image.reference}")
