"""The picture in README: the page of a comparison that ran, above its tables.

`tests/fixtures/comparison` has the records of that run. Other words or figures of the page need another picture, which
`make golden` makes.
"""

import io
import os
import re
import shutil
from pathlib import Path

from PIL import Image, ImageChops, ImageStat

from launcher.__main__ import main

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "comparison.png"
RECORDED = ROOT / "tests" / "fixtures" / "comparison"
SMALL = (160, 60)
"""Pixels at which letters of another Chromium's fonts are alike, and a bar of another length is not."""


def small(image: Image.Image) -> Image.Image:
    return image.convert("L").resize(SMALL, Image.Resampling.BOX)


def test_the_picture_in_the_readme_is_of_the_page_of_the_recorded_comparison(browser, tmp_path):
    (run,) = RECORDED.iterdir()
    shutil.copytree(RECORDED, tmp_path / "runs")
    assert main(["report", run.name, "--html", f"{tmp_path}/page.html", f"run_root={tmp_path}/runs"]) == 0
    page = browser.new_page(viewport={"width": 900, "height": 900}, color_scheme="light", device_scale_factor=2)
    page.goto((tmp_path / "page.html").as_uri())
    sentence = page.inner_text(".lead")
    height = page.locator("table").first.bounding_box()["y"]
    taken = page.screenshot(clip={"x": 0, "y": 0, "width": 900, "height": height})
    page.close()
    if os.environ.get("UPDATE_GOLDEN"):
        Image.open(io.BytesIO(taken)).quantize(64).save(PICTURE, optimize=True)
    shown, now = Image.open(PICTURE), Image.open(io.BytesIO(taken))
    assert PICTURE.stat().st_size < 100_000
    assert all(abs(one - other) < 40 for one, other in zip(shown.size, now.size, strict=True))
    difference = ImageStat.Stat(ImageChops.difference(small(shown), small(now))).mean[0]
    assert difference < 2, "the page is another; `make golden`, and look at the picture"
    alt = re.search(r"^!\[(.*)\]\(docs/comparison\.png\)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert alt is not None and alt[1] == sentence.strip()
