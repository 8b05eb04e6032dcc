"""GET requests for registries, bounded in size and time, whose `Authorization` stays with the origin it was made for.

An origin is scheme, host and port (RFC 6454). Only https is spoken, and http with this machine itself. A remote
registry can't point a request at a service of this machine.
"""

from __future__ import annotations

import http.client
import ipaddress
import queue
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO

MAX_BYTES = 4 * 2**20
"""Of one answer; the largest manifest that registries themselves accept."""
SECONDS = 30.0
"""For one request, its redirects included."""
MAX_REDIRECTS = 5

Answer = tuple[Message, bytes]


class Unusable(Exception):
    """There is no valid answer, or the request is not allowed; the message is for people."""


class Status(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, headers: Message) -> None:
        super().__init__(str(code))
        self.code, self.headers = code, headers


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine: `localhost` or an address of the loopback network."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises `Unusable` unless it is an https URL, or http to this machine."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Unusable(f"{url[:200]!r} is not a URL") from None
    if not host or parts.username is not None:
        raise Unusable(f"{url[:200]!r} is not a URL of a host")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
        raise Unusable(f"{url[:200]!r} is neither https nor on this machine")
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80)


def check_target(url: str, asked_by: str) -> None:
    """Check a URL from an answer of `asked_by`. Raises `Unusable`."""
    origin(url)
    local = [is_loopback(urllib.parse.urlsplit(link).netloc) for link in (asked_by, url)]
    if local == [False, True]:
        raise Unusable(f"{url[:200]!r} is on this machine, and {origin(asked_by)[1]} is not")


def get(url: str, headers: Mapping[str, str], *, seconds: float = SECONDS) -> Answer:
    """Headers and body of the answer. Raises `Status` for an error status, `Unusable` for everything else."""
    origin(url)
    outcome: queue.Queue[Answer | Status | Unusable] = queue.Queue(1)
    # The socket's timeout restarts with every byte: a server that sends one a second would never hit it.
    threading.Thread(target=lambda: outcome.put(_get(url, headers, seconds)), daemon=True).start()
    try:
        answer = outcome.get(timeout=seconds)
    except queue.Empty:
        raise Unusable(f"no complete answer in {seconds:g} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _get(url: str, headers: Mapping[str, str], seconds: float) -> Answer | Status | Unusable:
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with _opener(url).open(request, timeout=seconds) as answer:
            body: bytes = answer.read(MAX_BYTES + 1)
            if len(body) > MAX_BYTES:
                return Unusable(f"an answer of more than {MAX_BYTES // 2**20} MiB")
            return answer.headers, body
    except Unusable as error:
        return error
    except urllib.error.HTTPError as error:
        with error:
            return Status(error.code, error.headers)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        return Unusable(str(getattr(error, "reason", error) or type(error).__name__))


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Without urllib's handlers of file:, ftp: and data:, and without a proxy on the way to this machine."""
    opener = urllib.request.OpenerDirector()
    proxy = urllib.request.ProxyHandler({} if is_loopback(urllib.parse.urlsplit(url).netloc) else None)
    for handler in (
        proxy,
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MAX_REDIRECTS

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_target(newurl, req.full_url)
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None:
            following.remove_header("Proxy-authorization")  # added again if the new host is reached through the proxy
            if origin(newurl) != origin(req.full_url):
                following.remove_header("Authorization")
        return following
