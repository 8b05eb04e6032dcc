"""Real HTTP servers in place of those of publishers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

from amp_launcher.recipes.data.download import Published

Server = http.server.ThreadingHTTPServer


@pytest.fixture
def serving() -> Iterator[Callable[[Server], Server]]:
    """A function that has a server answer until the test ends."""
    with contextlib.ExitStack() as stack:

        def start(server: Server) -> Server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def publish(serving, tmp_path_factory) -> Callable[[str, bytes], Published]:
    """A function that publishes a file of that name and content."""
    folder = tmp_path_factory.mktemp("mirror")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = serving(Server(("127.0.0.1", 0), handler))

    def published(name: str, content: bytes) -> Published:
        (folder / name).write_bytes(content)
        md5, url = hashlib.md5(content).hexdigest(), f"http://127.0.0.1:{server.server_port}/{name}"
        return Published(name=name, size=len(content), md5=md5, urls=(url,))

    return published
