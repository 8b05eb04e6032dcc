"""Hostile registries: real servers on loopback that never end, or answer nonsense."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers import registry
from launcher.containers.references import resolve
from launcher.containers.registry import PullError, check_target, is_loopback
from tests.containers.registry_server import INDEX

Answer = Callable[[BaseHTTPRequestHandler, "Server"], None]


class Server(ThreadingHTTPServer):
    """An HTTP server on loopback that remembers each path."""

    def __init__(self, answer: Answer) -> None:
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                answer(self, server)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up on an endless answer is expected."""


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    with Server(answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def send(
    handler: BaseHTTPRequestHandler, code: int, body: bytes = b"", phrase: str | None = None, **headers: str
) -> None:
    handler.send_response(code, phrase)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def send_manifest(handler: BaseHTTPRequestHandler, body: bytes = b"{}", kind: str = "application/json") -> None:
    send(handler, 200, body, Docker_Content_Digest=f"sha256:{'0' * 64}", Content_Type=kind)


def ask(server: Server) -> str:
    return registry.digest(resolve(f"{server.host}/test/image"), "amd64")


def bearer(host: str) -> str:
    """A challenge that names the token server of a host."""
    return f'Bearer realm="http://{host}/token"'


def test_a_remote_registry_points_at_nothing_on_this_machine() -> None:
    with pytest.raises(ValueError, match=r"is on this machine, and registry\.example is not"):
        check_target("https://127.0.0.1:8443/token", "https://registry.example/v2/")
    for url in ("https://me@auth.example/token", "https:///token", "http://auth.example/token", "ftp://127.0.0.1/"):
        with pytest.raises(ValueError, match=r"is not a URL of a host|is neither https nor on this machine"):
            check_target(url, "https://registry.example/v2/")
    check_target("https://auth.example/token", "https://registry.example/v2/")


def test_only_loopback_addresses_are_this_machine() -> None:
    here = ["127.0.0.1:5000", "127.8.0.1", "localhost:5000", "[::1]:5000"]
    elsewhere = ["127.0.0.1.evil.example", "127.evil.example:5000", "localhost.evil.example", "10.0.0.1"]
    assert [host for host in (*here, *elsewhere) if is_loopback(host)] == here


def challenging(challenge: str) -> Answer:
    return lambda handler, _: send(handler, 401, WWW_Authenticate=challenge)


def moved(location: str) -> Answer:
    return lambda handler, _: send(handler, 302, Location=location)


def index(body: bytes) -> Answer:
    return lambda handler, _: send_manifest(handler, body, INDEX)


def token(body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, server: Server) -> None:
        if handler.path.startswith("/token"):
            send(handler, 200, body)
        else:
            send(handler, 401, WWW_Authenticate=bearer(server.host))

    return answer


def endless(handler: BaseHTTPRequestHandler, _: Server) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


NONSENSE = "as a registry should"
ARCHITECTURE = {"platform": {"os": "linux", "architecture": "\x1b[31mowned"}}
REFUSED: list[tuple[str, Answer]] = [
    *(
        ("does not answer", challenging(f'Bearer realm="{realm}"'))
        for realm in ("file:///etc/passwd", "http://127.0.0.1.evil.example/", "ftp://a/", "", "x")
    ),
    ("answers 302", moved("http://evil.example/")),
    ("an answer of more than 4 MiB", endless),
    *((NONSENSE, index(body)) for body in (b"[" * 100_000, b"[1]", b"null", b"\xff")),
    ("made for no Linux", index(b'{"manifests": 5}')),
    ("made for no Linux", index(b'{"manifests": [{"platform": {"os": "windows", "architecture": "amd64"}}]}')),
    ("made for no Linux", index(b'{"manifests": [1, {"platform": 3}]}')),
    ("made for no Linux", index(json.dumps({"manifests": [ARCHITECTURE]}).encode())),
    *((NONSENSE, token(body)) for body in (b"[" * 100_000, b"no json")),
    *(("an invalid token", token(body)) for body in (b'{"token": {"a": 1}}', b'{"token": "a\\r\\nX: y"}')),
    ("out for a key alone", lambda handler, _: send(handler, 401)),
    ("answers 500 Internal Server Error for", lambda handler, _: send(handler, 500, phrase="\x1b]0;owned\x07")),
]


def trickling(handler: BaseHTTPRequestHandler, _: Server) -> None:
    """Each byte comes in time; so does each of a header's, which has no end either."""
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.01)


def test_a_registry_that_trickles_is_waited_for_no_longer_than_for_a_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "WHOLE_SECONDS", 0.5)
    with serving(trickling) as server:
        with pytest.raises(PullError, match=r"its answer has not ended in 0\.5 s"):
            ask(server)
        others = set(threading.enumerate()) - {threading.main_thread()}
        assert all(thread.daemon for thread in others), "one that waits for the answer would keep the process"


@pytest.mark.parametrize(("says", "answer"), REFUSED)
def test_what_no_registry_should_answer_is_refused_in_words_of_ours(says: str, answer: Answer) -> None:
    with serving(answer) as server, pytest.raises((PullError, SettingsError), match=says) as refused:
        ask(server)
    assert "\x1b" not in str(refused.value)
    assert len(server.paths) < 20
