"""The legality table as people are shown it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from amp_launcher import modes
from amp_launcher.precision.levels import LEVELS
from amp_launcher.precision.support import support_for
from tests import golden

GOLDEN = Path(__file__).parent / "golden"


def test_golden_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert modes.main([]) == 0
    golden.check(GOLDEN / "modes.txt", capsys.readouterr().out)


@pytest.mark.parametrize("framework", modes.FRAMEWORKS)
def test_every_cell_of_the_table_has_a_line_with_its_mechanism_or_its_reason(framework: str) -> None:
    cells = {row[:-1]: row[-1] for row in modes.rows([framework])}
    for level, device, xla in itertools.product(LEVELS, ("cpu", "cuda"), (False, True)):
        for dtype in ("float32",) if level == "o0" else ("float16", "bfloat16"):
            row = support_for(framework, level, dtype, xla, device)
            flag = str(xla).lower()
            keys = [(framework, level, shown, device, flag) for shown in (dtype, "either")]
            lines = [cells[key] for key in (*keys, (framework, "any", "any", "any", flag)) if key in cells]
            assert lines == [row.mechanism or f"nothing: {row.unsupported}"]


def test_every_mechanism_is_explained() -> None:
    rows = [*modes.rows(), *modes.script_rows()]
    assert {row[-1] for row in rows if not row[-1].startswith("nothing")} == set(modes.MEANINGS)


def test_a_wrong_word_is_refused_and_no_package_is_needed() -> None:
    command = [sys.executable, "-S", "-m", "amp_launcher.modes"]
    assert subprocess.run([*command, "torch"], capture_output=True, text=True, check=True).stdout.startswith(
        "framework"
    )
    wrong = subprocess.run([*command, "jax"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "jax is not one of torch, tensorflow, paddle\n")
