"""TensorBoard's own page, opened in a browser, shows what was exported."""

import json
import socket
import subprocess
import sys
import urllib.request

import pytest

from ..run_folders import NAME, until
from .exported import export, run

pytest.importorskip("tensorboard")


@pytest.fixture
def address(root, tmp_path):
    """That of TensorBoard over an exported run of four steps, once it has read them."""
    run(root, steps=4)
    assert export("brave", "to=tensorboard", f"dir={tmp_path / 'events'}") == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--logdir", str(tmp_path / "events"), "--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    with (
        open(tmp_path / "stderr", "w+") as log,
        subprocess.Popen([sys.executable, "-m", "tensorboard.main", *words], stderr=log) as server,
    ):
        until(lambda: "Press CTRL+C" in (tmp_path / "stderr").read_text() or server.poll() is not None)
        assert server.poll() is None, (tmp_path / "stderr").read_text()
        until(lambda: NAME in json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs")))
        yield f"http://127.0.0.1:{port}/"
        server.kill()


def test_tensorboards_page_draws_the_curves_of_a_run(address, browser):
    page = browser.new_page()
    page.set_default_timeout(180_000)
    page.goto(f"{address}#timeseries")
    page.get_by_text("eval/accuracy", exact=True).first.wait_for()
    page.get_by_role("combobox", name="Filter tags (regex)").fill("^train/loss$")
    page.get_by_text("train/loss", exact=True).first.wait_for()
    page.get_by_text("0.25", exact=True).first.wait_for()  # the value of the last step, in the table below the curve
    assert page.get_by_text(NAME).count()
    page.close()
