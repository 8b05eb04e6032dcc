"""README and docs/: commands that the launcher understands, links that lead somewhere, keys that exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from launcher.commands import VERBS
from launcher.compare.comparison import split_flags as take_compare_apart
from launcher.config.request import compose, split_flags, to_specs
from launcher.config.schema import ALIASES, annotation_of
from launcher.search import space

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for line in re.findall(r"^    (?:\$ )?python -m launcher (.*?)\s*(?: #.*)?$", page.read_text("utf-8"), re.MULTILINE)
]
LINKS = re.compile(r"\]\((?!https?:)([^)#]+)\)")
KEYS = re.compile(r"`((?:amp|loss_scale|cluster|container|profile|checkpoint|telemetry|script)\.[a-z_.]+)=")
ELSEWHERE = ("--config-dir sites", "experiment=", "report ", "fetch ", "shell ", "image ")
"""Beginnings of commands whose words name files or runs that only their reader has."""


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_that_is_shown_is_understood(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [re.sub(r"^\[(-.*)\]$", r"\1", word) for word in shlex.split(line)]
    verb = words.pop(0) if words[0] in VERBS else "run"
    assert verb in VERBS
    if verb not in ("run", "plan", "compare", "doctor") or "--help" in words or any(part in line for part in ELSEWHERE):
        return
    monkeypatch.chdir(ROOT / "tests" / "fixtures" / "docs")
    request = split_flags(
        words, own=("json", "facts", "all", "script") if verb == "plan" else (), starts=verb != "doctor"
    )
    if verb == "compare":
        assert take_compare_apart(request.overrides)[1]
    elif space.is_asked(request.overrides):
        space.ends(space.split(request)[1], request, space.split(request)[0])
    else:
        to_specs(compose(request))


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
