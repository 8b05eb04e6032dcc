"""Every published table runs for real, small, and reports its figures next to ours."""

from __future__ import annotations

import itertools
import re

import pytest

from launcher.compare import experiments
from launcher.compare.published import COLUMNS
from launcher.runs import selection, store
from tests.launcher import warm
from tests.launcher.compare.test_experiments import NAMES, PADDLES
from tests.launcher.run_folders import called
from tests.onednn import bfloat16_needed

IN_TORCH = ("alcf_gan", "cifar100_efficientnet", "twcc_resnet50")
"""Tables of TensorFlow that are measured in torch, as any of them can be; `graph_rewrite` shows it in TensorFlow."""
MEASURED = {
    "twcc_resnet50": ("ffhhh", ["1.00", "1.03", "3.33", "3.33", "3.46"]),
    "paddle_simplenet": ("fhhhh", ["1.00", "4.48", "5.19", "4.68", "-"]),
    "paddle_simplenet_static": ("fhhh", ["1.00", "4.54", "5.42", "3.79"]),
    "alcf_gan": ("ffhhh", ["1.00", "1.49", "2.19", "-", "0.88"]),
    "cifar100_efficientnet": ("fhhf", ["1.00", "2.37", "-", "-"]),
    "graph_rewrite": ("fhh", []),
}
"""Which arms are observed in float32 (f) and which in half precision (h), and the published ratios."""


def published_columns(name):
    """The columns of the report with published figures: those of the file with all their digits, and ratios."""
    figures = experiments.find(name, ()).published.arms
    columns = {f"published {title}": [getattr(arm, key) for arm in figures] for key, title in COLUMNS.items()}
    shown = {
        title: ["-" if value is None else f"{value:.10g}" for value in values]
        for title, values in columns.items()
        if any(values)
    }
    ratios = MEASURED[name][1]
    return {**shown, **({"published ratio": ratios} if ratios else {})}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=bfloat16_needed) if name == "paddle_simplenet_static" else name for name in NAMES],
)
def test_run_small_it_ends_with_the_published_columns_beside_ours(name, tmp_path):
    """All arms prove their modes; and the same is in the page that `report` makes of it."""
    root, columns = tmp_path / "runs", published_columns(name)
    pytest.importorskip("torch" if name in (*PADDLES, *IN_TORCH) else "tensorflow")
    words = [f"experiment={name}", "scale=smoke", "telemetry.every=0", "env.OMP_NUM_THREADS=1"]
    words += [f"run_root={root}", f"python={warm.python()}"]
    words += ["framework=torch"] if name in IN_TORCH else []
    done = called(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = selection.run_names(str(root))
    results = [store.read_json(path / "result.json") for path in sorted((root / run / "arms").iterdir())]
    assert {(result["status"], result["observed"]["verdict"]) for result in results} == {("done", "proved")}
    dtypes = {"f": "float32", "h": "bfloat16"}  # half precision on a CPU
    assert [result["observed"]["dtype"] for result in results] == [dtypes[kind] for kind in MEASURED[name][0]]

    shown = columns_of(done.stdout)
    assert {header: cells for header, cells in shown.items() if header.startswith("published")} == columns
    ours = [f"our {header.removeprefix('published ')}" for header in columns if "loss" not in header]
    for header in {*ours, "our ratio", "our samples/s"} - {"our accuracy"}:  # random images have none
        assert all(float(cell.replace(",", "")) > 0 for cell in shown[header]), header
    assert "form scale=smoke, which shows that it runs and says nothing of its speed" in done.stdout

    page = tmp_path / "page.html"
    assert called("report", run, "--html", str(page), f"run_root={root}").returncode == 0
    text = page.read_text()
    assert [cell for cells in columns.values() for cell in cells if f">{cell}</td>" not in text] == []


def columns_of(text):
    """The columns of the table under "Comparison with published figures", by their headers."""
    _, _, table = text.partition("COMPARISON WITH PUBLISHED FIGURES")[2].partition("\narm  ")
    header, *rows = (re.split(r"\s{2,}", line) for line in itertools.takewhile(bool, f"arm  {table}".splitlines()))
    return {name: list(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}
