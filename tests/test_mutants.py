"""What `make mutants` counts as caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests import mutants

SUM = "def total(one, two):\n    return one + two\n"
TESTS = """
import pytest
from room.{name} import total
@pytest.mark.skipif({skipped}, reason="no testbed")
def test_one():
    assert total(2, {other}) == 2 + {other}
"""


def test_a_mutant_is_caught_or_survives_or_has_only_skipped_tests(tmp_path: Path) -> None:
    for folder in (tmp_path / "room", tmp_path / "tests" / "room"):
        folder.mkdir(parents=True)
    for name, skipped, other in (("caught", False, 1), ("survives", False, 0), ("skipped", True, 1)):
        (tmp_path / "room" / f"{name}.py").write_text(SUM)
        test = TESTS.format(name=name, skipped=skipped, other=other)
        (tmp_path / "tests" / "room" / f"test_{name}.py").write_text(test)
    (tmp_path / "tests" / "__init__.py").touch()
    shutil.copy(mutants.__file__, tmp_path / "tests")  # which takes the tree that it lies in
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    tool = [sys.executable, "-m", "tests.mutants", "room", "--preload"]
    assert subprocess.check_output(tool, cwd=tmp_path, text=True).splitlines() == [
        "1 not tested, of room/skipped.py: all tests of tests/room/test_skipped.py are skipped here",
        "room/survives.py:2  return one + two  ->  return one - two",
        "1 of 2 caught, 50.0%",
    ]
