"""A registry on loopback that holds one small image, counts what is fetched, and can want a password or be slow.

Speaks as much of the distribution API as Docker and Apptainer ask for. Layers differ with `content`, so that every
test has an image of its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
USER, PASSWORD = "$oauthtoken", "k3y $(id) with spaces"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up early is no news."""


class Registry:
    """Started by `with`; `name` is `127.0.0.1:PORT/test/image`."""

    def __init__(
        self,
        content: str,
        *,
        architecture: str = "amd64",
        authentication: str = "",
        index: bool = False,
        slow: float = 0.0,
        size: int = 0,
    ) -> None:
        self.authentication, self.slow = authentication, slow
        self.before_blob: Callable[[], object] = lambda: None
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blob_fetches = 0
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.digest = self._fill(content, architecture, index, size)
        self.server = _Server(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.name = f"{self.host}/test/image"

    def __enter__(self) -> Registry:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _fill(self, content: str, architecture: str, index: bool, size: int) -> str:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for name, data in (
                ("content", content.encode()),
                ("filler", hashlib.sha256(content.encode()).digest() * (size // 32)),
            ):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        packed = gzip.compress(layer.getvalue(), compresslevel=1, mtime=0)
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["FROM_IMAGE=registry"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer.getvalue())]},
        }
        encoded = json.dumps(config).encode()
        self.blobs = {sha256(packed): packed, sha256(encoded): encoded}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(encoded),
                "digest": sha256(encoded),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(packed),
                    "digest": sha256(packed),
                }
            ],
        }
        top = self._add(MANIFEST, manifest)
        if index:
            platform = {"architecture": architecture, "os": "linux"}
            entry = {"mediaType": MANIFEST, "digest": top, "size": len(self.manifests[top][1]), "platform": platform}
            top = self._add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
        self.manifests["latest"] = self.manifests["v1"] = self.manifests[top]
        return top

    def _add(self, kind: str, value: dict[str, Any]) -> str:
        data = json.dumps(value).encode()
        self.manifests[sha256(data)] = (kind, data)
        return sha256(data)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                with registry.lock:
                    registry.requests.append(f"{self.command} {path}")
                if path == "/token":
                    self.token()
                elif not self.allowed():
                    self.challenge()
                elif path.rstrip("/") == "/v2":
                    self.answer("application/json", b"{}")
                elif path.startswith("/v2/test/image/manifests/"):
                    self.found(registry.manifests.get(path.rpartition("/")[2]))
                elif path.startswith("/v2/test/image/blobs/"):
                    data = registry.blobs.get(path.rpartition("/")[2])
                    if self.command == "GET":
                        with registry.lock:
                            registry.blob_fetches += 1
                        registry.before_blob()
                        time.sleep(registry.slow)
                    self.found(None if data is None else ("application/octet-stream", data))
                else:
                    self.found(None)

            def allowed(self) -> bool:
                given = self.headers.get("Authorization", "")
                wanted = {"basic": self.basic(), "bearer": "Bearer t0ken", "": given}[registry.authentication]
                return given == wanted

            def basic(self) -> str:
                return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

            def token(self) -> None:
                if self.headers.get("Authorization", "") == self.basic():
                    self.answer("application/json", b'{"token": "t0ken"}')
                else:
                    self.refuse(401, [])

            def challenge(self) -> None:
                realm = f'Bearer realm="http://{registry.host}/token",service="test",scope="repository:test/image:pull"'
                self.refuse(401, [("WWW-Authenticate", realm if registry.authentication == "bearer" else "Basic")])

            def found(self, what: tuple[str, bytes] | None) -> None:
                if what is None:
                    self.refuse(404, [])
                else:
                    self.answer(*what)

            def answer(self, kind: str, data: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", sha256(data))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def refuse(self, code: int, headers: list[tuple[str, str]]) -> None:
                data = b'{"errors": []}'
                self.send_response(code)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler
