"""Real HTTP servers in place of the mirrors of MNIST."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def mirrors() -> Iterator[Callable[[dict[str, bytes]], str]]:
    """A function that serves files by name and gives the address to put before them."""
    servers = []

    def serve(files: dict[str, bytes]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = files.get(self.path.removeprefix("/"))
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
