"""The digest of an image's name, from its registry. The runtimes' clients fetch; this fixes what they fetch."""

from __future__ import annotations

import base64
import http
import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from containers import bounded_http
from containers.bounded_http import Answer, Status, Unusable, is_loopback
from containers.references import Image
from recipes.typed import SettingsError

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HOSTS = {"docker.io": "registry-1.docker.io"}
# Registries whose token server is another host. No other registry may name another host for its key.
_TOKEN_SERVERS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
NGC_USER = "$oauthtoken"
"""The user name that goes with a key of NGC's."""


class RegistryError(Exception):
    """The registry can't be used; the message is for people."""


class NeedsKey(RegistryError):
    """The registry asks for a key and none was given. The engine's own login may have one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """For a private image. The password never shows in messages or representations."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


def digest(image: Image, architecture: str, credentials: Credentials | None = None) -> str:
    """The current digest of the image's name.

    Raises `SettingsError` if there is no such image or none for this architecture, `RegistryError` if the registry
    does not answer or wants a key.
    """
    if image.digest:
        return image.digest
    host = _HOSTS.get(image.registry, image.registry)
    scheme = "http" if is_loopback(host) else "https"
    url = f"{scheme}://{host}/v2/{image.repository}/manifests/{image.tag}"
    headers, body = _get(url, image, credentials)
    digest_sent = headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest_sent):
        raise RegistryError(f"{image.registry} sends no digest for {image.reference}")
    if (headers.get("Content-Type") or "").partition(";")[0] in _INDEXES:
        _check_platform(image, body, architecture)
    return digest_sent


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
            f"image={image.given} is made for {', '.join(made_for[:20]) or 'no Linux'} and this host is {architecture}",
            "image",
        )


def _object(body: bytes, image: Image) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RegistryError(f"{image.registry} does not answer as a registry should, for {image.reference}")
    return value


def _get(url: str, image: Image, credentials: Credentials | None) -> Answer:
    accept = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))}
    try:
        try:
            return bounded_http.get(url, accept)
        except Status as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge:
                raise
        authorization = _authorization(challenge, url, image, credentials)
        return bounded_http.get(url, {**accept, "Authorization": authorization})
    except Status as error:
        raise _explained(error.code, image, credentials) from None
    except Unusable as error:
        raise RegistryError(f"{image.registry} does not answer: {error}") from None


def _authorization(challenge: str, url: str, image: Image, credentials: Credentials | None) -> str:
    """The `Authorization` for a challenge: the credentials, or a token fetched with them or anonymously.

    Raises `RegistryError` where the challenge would send the credentials to another host. Source:
    https://distribution.github.io/distribution/spec/auth/token/.
    """
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic":
        return _basic(credentials) if credentials else ""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = fields.get("realm", "")
    bounded_http.check_target(realm, url)
    if credentials and bounded_http.origin(realm) not in _trusted_with_key(url):
        raise RegistryError(
            f"{image.registry} asks to send its key to another address ({bounded_http.origin(realm)[1]}), which is "
            "refused; log in with the container engine's own client instead, and leave key= out"
        )
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    headers = {"Authorization": _basic(credentials)} if credentials else {}
    _, body = bounded_http.get(f"{realm}{'&' if '?' in realm else '?'}{query}", headers)
    answer = _object(body, image)
    token = answer.get("token") or answer.get("access_token", "")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]*", token):
        raise RegistryError(f"{image.registry} sends an invalid token for {image.reference}")
    return f"Bearer {token}"


def _trusted_with_key(url: str) -> set[tuple[str, str, int]]:
    own = bounded_http.origin(url)
    server = _TOKEN_SERVERS.get(own[1])
    return {own, ("https", server, 443)} if server and own[0] == "https" else {own}


def _basic(credentials: Credentials) -> str:
    return "Basic " + base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()


def _explained(code: int, image: Image, credentials: Credentials | None) -> SettingsError | RegistryError:
    if code == 404:
        return SettingsError(f"image={image.given}: {image.registry} has no {image.reference}", "image")
    if code in (401, 403):
        refused = f"{image.registry} does not give out {image.reference}: "
        if credentials:
            return RegistryError(refused + "the key is not accepted")
        return NeedsKey(refused + "it asks for a key, and none was given")
    # The server's own phrase is not shown: it could be any text.
    phrase = http.HTTPStatus(code).phrase if code in set(http.HTTPStatus) else ""
    return RegistryError(f"{image.registry} answers {code} {phrase}".rstrip() + f" for {image.reference}")
