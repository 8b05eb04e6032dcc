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
        diff_ids = [sha256(layer.getvalue())]
        config = {"architecture": architecture, "os": "linux", "config": {"Env": ["FROM_IMAGE=registry"]}}
        encoded = json.dumps(config | {"rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
        self.blobs = {sha256(packed): packed, sha256(encoded): encoded}

        def described(kind: str, data: bytes) -> dict[str, Any]:
            return {"mediaType": kind, "size": len(data), "digest": sha256(data)}

        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described("application/vnd.docker.container.image.v1+json", encoded),
            "layers": [described("application/vnd.docker.image.rootfs.diff.tar.gzip", packed)],
        }
        top = self._add(MANIFEST, manifest)
        if index:
            platform = {"platform": {"architecture": architecture, "os": "linux"}}
            entry = described(MANIFEST, self.manifests[top][1]) | platform
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
                    self.send_or_404(registry.manifests.get(path.rpartition("/")[2]))
                elif path.startswith("/v2/test/image/blobs/"):
                    data = registry.blobs.get(path.rpartition("/")[2])
                    if self.command == "GET":
                        with registry.lock:
                            registry.blob_fetches += 1
                        time.sleep(registry.slow)
                    self.send_or_404(None if data is None else ("application/octet-stream", data))
                else:
                    self.send_or_404(None)

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
                    self.refuse(401, {})

            def challenge(self) -> None:
                realm = f'Bearer realm="http://{registry.host}/token",service="test",scope="repository:test/image:pull"'
                self.refuse(401, {"WWW-Authenticate": realm if registry.authentication == "bearer" else "Basic"})

            def send_or_404(self, what: tuple[str, bytes] | None) -> None:
                if what is None:
                    self.refuse(404, {})
                else:
                    self.answer(*what)

            def answer(self, kind: str, data: bytes) -> None:
                self.send(200, data, {"Content-Type": kind, "Docker-Content-Digest": sha256(data)})

            def refuse(self, code: int, headers: dict[str, str]) -> None:
                self.send(code, b'{"errors": []}', headers)

            def send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler
