"""TensorBoard's own page, opened in a browser, shows what was exported."""

import socket
import subprocess
import sys

import pytest

from ..run_folders import NAME
from .exported import export, run

pytest.importorskip("tensorboard")


@pytest.fixture
def server(tmp_path):
    """TensorBoard over what is exported into its folder, as `export` says to start it. Its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--logdir", str(tmp_path / "events"), "--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    with subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *words], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Press CTRL+C" in line:
                break
        else:
            pytest.fail("TensorBoard did not start")
        yield f"http://127.0.0.1:{port}/"
        process.kill()


def test_tensorboards_page_draws_the_curves_of_a_run(root, tmp_path, server, browser):
    run(root, steps=4)
    assert export("brave", "to=tensorboard", f"dir={tmp_path / 'events'}") == 0
    page = browser.new_page()
    page.set_default_timeout(180_000)
    page.goto(f"{server}#timeseries")
    page.get_by_placeholder("Filter tags (regex)").fill("^train/loss$")
    page.get_by_text("train/loss", exact=True).first.wait_for()
    page.get_by_text("0.25", exact=True).first.wait_for()  # the value of the last step, in the table below the curve
    assert page.get_by_text(NAME).count()
    assert page.locator("card-view").count() == 1
    page.close()
