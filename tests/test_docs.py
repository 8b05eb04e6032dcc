"""README and docs/: links that lead somewhere, keys and files that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from launcher.commands import VERBS
from launcher.config.schema import ALIASES, annotation_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKS = re.compile(r"\]\((?!https?:)([^)#]+)\)")
KEYS = re.compile(r"`((?:amp|loss_scale|cluster|container|profile|checkpoint|telemetry|script)\.[a-z_.]+)=")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_keys_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [target for target in LINKS.findall(text) if not (page.parent / target).exists()] == []
    assert [key for key in KEYS.findall(text) if annotation_of(ALIASES.get(key, key)) is None] == []


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site.py"))
    assert site["build"](tmp_path) == 0
    written = {path.name for path in (tmp_path / "pages").glob("*.md")}
    named = {page for pages in site["NAVIGATION"].values() for page in pages.values()}
    assert named <= written and {page.name for page in (ROOT / "docs").glob("*.md")} <= named
    assert (tmp_path / "site" / "docs-comparison.png").read_bytes() == (ROOT / "docs/comparison.png").read_bytes()
    text = (tmp_path / "site" / "keys.html").read_text("utf-8")
    assert "loss_scale.growth_every" in text and "cluster.max_requeues" in text
    assert all(
        f'id="{verb}"' in (tmp_path / "site" / "verbs.html").read_text("utf-8") for verb in VERBS if verb != "run"
    )


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size < 7000


def test_every_test_that_security_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) > 20
    for file, test in named:
        text = (ROOT / "tests" / file).read_text("utf-8")
        assert not test or f"def {test}(" in text, f"{file} has no {test}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "SECURITY.md"], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:launcher|containers|recipes|conf|tests|examples|benchmarks)/[\w/.-]*)`", page.read_text("utf-8")
    )
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    assert not missing
