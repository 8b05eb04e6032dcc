"""Trackers whose packages are too old for their clients here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.executors import tracker_packages
from tests.launcher.trackers import exported

ROOT = Path(__file__).parents[3]


def test_they_are_those_of_the_extras() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for tracker, packages in tracker_packages.OLDEST.items():
        (line,) = re.findall(rf"^{tracker} = \[(.*)\]", text, re.MULTILINE)
        said = re.findall(r'"([\w-]+)>=([\d.]+)"', line)
        assert said == [(package, ".".join(map(str, version))) for package, version in packages.items()]


@pytest.mark.parametrize(
    ("tracker", "package", "version", "needed"),
    [("wandb", "wandb", "0.15.0", "0.19.10"), ("mlflow", "alembic", "1.7.7", "1.11")],
)
def test_an_old_package_is_one_sentence_with_what_to_install(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tracker: str,
    package: str,
    version: str,
    needed: str,
) -> None:
    found = tmp_path / "old" / f"{package}-{version}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(found.parent)
    assert exported.export(exported.run(root).name, f"to={tracker}", f"run_root={root}") == 2
    assert (
        f"to={tracker} needs {package} {needed} or newer, and there is {version}: pip install 'amp-launcher[{tracker}]'"
        in capsys.readouterr().err
    )
