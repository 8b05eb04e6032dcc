"""The system's own Chromium, which opens pages as a person's browser would."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.testbed.plugin import HOW, REQUIRED

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window. Skips where there is none; fails there if TESTBED_REQUIRED=1."""
    program = shutil.which("chromium")
    sync_api = pytest.importorskip("playwright.sync_api") if os.environ.get(REQUIRED) != "1" else None
    if program is None:
        reason = f"there is no chromium here: apt install chromium, or {HOW}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{reason} ({REQUIRED}=1)", pytrace=False)
        pytest.skip(reason)
    if sync_api is None:
        from playwright import sync_api
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=OPTIONS)
        yield opened
        opened.close()
