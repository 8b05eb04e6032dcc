"""Downloads from a real server that cuts connections and lies, and archives that try to escape."""

from __future__ import annotations

import hashlib
import http.server
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from amp_launcher.recipes.data import download
from amp_launcher.recipes.data.download import LOCK, Published, fetch, locked
from amp_launcher.typed import SettingsError

CONTENT = random.Random(0).randbytes(3_000_000)
SPAWN = multiprocessing.get_context("spawn")


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT under every path, with these habits."""

    daemon_threads = True

    def __init__(self, content: bytes = CONTENT, **habits) -> None:
        self.content, self.habits = content, habits
        self.requests = 0
        self.released = threading.Event()
        """The habit `hold` sends no more than so many bytes before this."""
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server, habits = self.server, self.server.habits
        server.requests += 1
        if "redirect" in habits:
            self.send_response(302)
            self.send_header("Location", habits["redirect"])
            self.end_headers()
            return
        if "status" in habits:
            self.send_error(habits["status"])
            return
        body = server.content
        self.send_response(200)
        if habits.get("length", True):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # The habit `cut` sends no more than so many bytes, to the first `cuts` requests.
        limit = habits["cut"] if server.requests <= habits.get("cuts", 0) else len(body)
        for begin in range(0, limit, 100_000):
            if begin >= habits.get("hold", len(body)):
                server.released.wait(60)
            try:
                self.wfile.write(body[begin : min(begin + 100_000, limit)])
            except OSError:
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(serving):
    return lambda *arguments, **habits: serving(Server(*arguments, **habits))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.2)))


def published(*urls: str, content: bytes = CONTENT) -> Published:
    return Published(name="data.bin", size=len(content), md5=hashlib.md5(content).hexdigest(), urls=urls)


def names(folder: Path) -> list[str]:
    """But for the lock, which stays."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def test_a_cut_connection_is_tried_again(tmp_path, serve, capfd):
    server = serve(cut=1_000_000, cuts=2)
    with locked(tmp_path / "new"):
        path = fetch(tmp_path / "new", published(server.url))
    assert path.read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["data.bin"]
    assert server.requests == 3
    assert "data.bin: 3.0 of 3.0 MB" in capfd.readouterr().err


def test_what_a_killed_download_left_is_replaced(tmp_path, serve):
    child = SPAWN.Process(target=_fetch, args=(tmp_path, published(serve(hold=1_000_000).url)))
    child.start()
    part = tmp_path / ".data.bin.part"
    while not part.exists() or part.stat().st_size < 500_000:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    _fetch(tmp_path, published(serve(length=False).url))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]


@pytest.mark.parametrize(
    ("content", "habits", "says"),
    [
        (CONTENT[::-1], {}, "its MD5 differs"),
        (CONTENT + b"x", {}, "has 3,000,001 bytes, and the published one 3,000,000"),
        (CONTENT + b"x" * 10**6, {"length": False}, "more than the 3,000,000 bytes"),
        (CONTENT[:-1], {}, "has 2,999,999 bytes"),
        (CONTENT, {"cut": 0, "cuts": 3}, "the connection ended after 0 of"),
        (CONTENT, {"status": 404}, "HTTP 404"),
        (CONTENT, {"status": 503}, "HTTP 503"),
        (CONTENT, {"redirect": "http://example.com/data.bin"}, "example.com/data.bin is not https"),
        (CONTENT, {"redirect": "file:///etc/passwd"}, "Redirection to url 'file:///etc/passwd' is not allowed"),
    ],
)
def test_a_file_other_than_the_published_one_is_refused_and_leaves_nothing(tmp_path, serve, content, habits, says):
    server = serve(content, **habits)
    with pytest.raises(SettingsError, match=r"put it into") as error:
        _fetch(tmp_path, published(server.url))
    assert says in str(error.value)
    assert names(tmp_path) == []


def test_the_next_server_is_asked_and_plain_http_to_elsewhere_is_refused(tmp_path, serve):
    lies, good = serve(CONTENT[::-1]), serve()
    _fetch(tmp_path, published("http://192.0.2.1/data.bin", lies.url, good.url))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1/data\.bin is not https.*; .*its MD5 differs"):
        _fetch(tmp_path / "other", published("http://192.0.2.1/data.bin", lies.url))


def test_processes_of_one_folder_download_once(tmp_path, serve, capfd):
    server = serve(hold=1_000_000)
    children = [SPAWN.Process(target=_fetch, args=(tmp_path, published(server.url))) for _ in range(3)]
    for child in children:
        child.start()
    printed, until = "", time.monotonic() + 60
    while printed.count("waiting for another process that downloads into") < 2 and time.monotonic() < until:
        time.sleep(0.05)
        printed += capfd.readouterr().err
    server.released.set()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert server.requests == 1
    assert names(tmp_path) == ["data.bin"]
    assert printed.count("waiting for another process that downloads into") == 2


def test_a_part_that_is_a_link_is_not_written_through(tmp_path, serve):
    (tmp_path / "mine").write_bytes(b"precious")
    for make in (os.symlink, os.link):
        make(tmp_path / "mine", tmp_path / ".data.bin.part")
        _fetch(tmp_path, published(serve().url))
        (tmp_path / "data.bin").unlink()
    assert (tmp_path / "mine").read_bytes() == b"precious"


def test_another_file_of_that_name_and_a_folder_that_cannot_be_made_are_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"x")
    with pytest.raises(SettingsError, match="is not the published file"):
        _fetch(tmp_path, published("https://example.com/"))
    with pytest.raises(SettingsError, match=r"data\.dir=.* can't be written: "):
        _fetch(tmp_path / "data.bin" / "folder", published("https://example.com/"))


def _fetch(folder: Path, file: Published) -> None:
    with locked(folder):
        fetch(folder, file)
