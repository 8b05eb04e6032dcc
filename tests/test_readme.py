"""The README's claims that code can hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amp_launcher.precision.levels import LEVELS, LossScale
from amp_launcher.precision.resolved import resolve_scale
from amp_launcher.precision.support import support_for
from amp_launcher.recipe import NAMES, find
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.spec import make
from launcher.config.sweep import cells

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SITES = ROOT / "examples" / "sites"


def modes() -> dict[str, list[str]]:
    after = README.partition("<!-- modes")[2]
    rows = [line.strip("| ").split(" | ") for line in after.splitlines() if re.match(r"\| o\d \|", line)]
    return {row[0]: row[1:] for row in rows}


def test_the_table_of_modes_is_the_code() -> None:
    assert list(modes()) == list(LEVELS)
    for level, (meaning, *mechanisms, scale) in modes().items():
        assert meaning == LEVELS[level]
        frameworks = (("torch", "cpu"), ("tensorflow", "cpu"), ("paddle", "cuda"))
        assert mechanisms == [
            support_for(framework, level, "bfloat16", False, device).mechanism for framework, device in frameworks
        ]
        modes_of = [resolve_scale(LossScale(), level, dtype).mode for dtype in ("float16", "bfloat16")]
        assert scale == (
            "none" if modes_of == ["none", "none"] else "{} for float16, {} for bfloat16".format(*modes_of)
        )


def test_the_table_of_recipes_is_the_code() -> None:
    after = RECIPES.partition("<!-- recipes")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in after.splitlines() if re.match(r"\| [a-z0-9_]+ \|", line)]
    rows = [row for row in rows if row[0] != "recipe"]
    assert [row[0] for row in rows] == [name for name in NAMES if name != "script"]
    for name, _, data, numbers in rows:
        recipe = find(name)
        assert data == ", ".join(recipe.data)
        assert numbers == f"{recipe.batch}, {recipe.epochs}"


@pytest.mark.parametrize("site", sorted(path.stem for path in (SITES / "cluster").glob("*.yaml")))
def test_every_example_site_is_a_cluster(site: str) -> None:
    composer = Composer(config_dirs=[SITES])
    (cell,) = cells(composer, [parse(f"cluster={site}", composer.groups())])
    assert make(cell).launch.cluster.kind == "slurm"
