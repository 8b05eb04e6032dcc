"""A TCP proxy on loopback that delays, cuts and stalls connections, and counts what goes through: `tc netem` is not in
every kernel."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType


class Proxy:
    """Passes connections on to a port of loopback. What it does to them can be changed at any time."""

    def __init__(self, port: int, *, delay: float = 0.0) -> None:
        self.to = port
        self.delay = delay
        """Seconds that bytes take in each direction."""
        self.stalled = False
        """Nothing goes through, and nothing is closed."""
        self.mute = False
        """What the server says is not passed on."""
        self.refusing = False
        """New connections are closed at once."""
        self.cut_after_up: int | None = None
        """Cut all connections, once, when so many bytes have gone to the server."""
        self.cuts_after_down: list[int] = []
        """Cut all connections when so many bytes have come from the server, for each number."""
        self.up = 0
        """Bytes that went to the server."""
        self.down = 0
        self.turns = 0
        """How often the server's bytes followed the client's: round trips, where each side waits for the other."""
        self.connections = 0
        self._last = ""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread that has yet to call accept would accept for whoever is given the number of a closed descriptor.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection that is open, as a network that went away does."""
        with self._lock:
            doomed, self._open = self._open, set()
        for end in doomed:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            with self._lock:
                self._open |= {client, server}
            for one, other, way in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pass, args=(one, other, way), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, way: str) -> None:
        """Bytes from one to the other, each so long after it came as the delay says."""
        waiting: list[tuple[float, bytes]] = []
        come = threading.Condition()

        def give() -> None:
            while True:
                with come:
                    come.wait_for(lambda: waiting)
                    when, data = waiting.pop(0)
                time.sleep(max(0.0, when - time.monotonic()))
                while self.stalled or (self.mute and way == "down"):
                    time.sleep(0.02)
                try:
                    if not data:
                        other.shutdown(socket.SHUT_WR)
                        return
                    other.sendall(data)
                except OSError:
                    return

        threading.Thread(target=give, daemon=True).start()
        while True:
            try:
                data = one.recv(2**16)
            except OSError:
                data = b""
            self._count(way, len(data))
            with come:
                waiting.append((time.monotonic() + self.delay, data))
                come.notify()
            if not data:
                return
            if self.cut_after_up is not None and self.up >= self.cut_after_up:
                self.cut_after_up = None
                self.cut()
            if self.cuts_after_down and self.down >= self.cuts_after_down[0]:
                self.cuts_after_down.pop(0)
                self.cut()

    def _count(self, way: str, size: int) -> None:
        with self._lock:
            if way == "up":
                self.up += size
            else:
                self.down += size
                self.turns += self._last == "up"
            self._last = way
