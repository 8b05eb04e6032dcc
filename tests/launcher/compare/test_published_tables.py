"""Every published table runs for real, small, and reports its figures next to ours."""

from __future__ import annotations

import itertools
import re

import pytest

from launcher.runs import selection, store
from tests.launcher import warm
from tests.launcher.compare.test_experiments import NAMES, PADDLES
from tests.launcher.run_folders import launcher

IN_TORCH = ("cifar100_efficientnet", "twcc_resnet50")
"""Tables of TensorFlow that are measured in torch, as any of them can be; the others show it in TensorFlow."""
HALF = "bfloat16"
"""What a CPU has."""
MEASURED = {
    "twcc_resnet50": (
        ["float32", "float32", HALF, HALF, HALF],
        {
            "published ratio": ["1.00", "1.03", "3.33", "3.33", "3.46"],
            "published samples/s": ["393.49", "405.73", "1308.37", "1309.21", "1361"],
            "published GB": ["25.43", "31.31", "19.28", "19.29", "31.31"],
        },
    ),
    "paddle_simplenet": (
        ["float32", HALF, HALF, HALF, HALF],
        {
            "published ratio": ["1.00", "4.48", "5.19", "4.68", "-"],
            "published s/step": ["0.529", "0.118", "0.102", "1.13", "-"],
            "published loss": ["0.6486028", "0.6486219", "0.6743", "0.6602017", "-"],
        },
    ),
    "paddle_simplenet_static": (
        ["float32", HALF, HALF, HALF],
        {
            "published ratio": ["1.00", "4.54", "5.42", "3.79"],
            "published s/step": ["0.531", "0.117", "0.098", "0.14"],
            "published loss": ["0.6486028", "0.6486222", "0.6743", "0.6691731"],
        },
    ),
    "alcf_gan": (
        ["float32", "float32", HALF, HALF, HALF],
        {
            "published ratio": ["1.00", "1.49", "2.19", "-", "-"],
            "published s/step": ["0.15", "0.101", "0.0684", "-", "-"],
        },
    ),
    "cifar100_efficientnet": (
        ["float32", HALF, HALF, "float32"],
        {
            "published ratio": ["1.00", "2.37", "-", "-"],
            "published s/epoch": ["159", "67", "-", "-"],
            "published accuracy": ["0.5242", "0.5059", "-", "-"],
        },
    ),
    "graph_rewrite": (["float32", HALF, HALF], {}),
}
"""What each arm is observed to compute in, and the published columns of the report; all of them, arm by arm."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_run_small_it_ends_with_the_published_columns_beside_ours(name, tmp_path):
    """All arms prove their modes; and the same is in the page that `report` makes of it."""
    root, dtypes, columns = tmp_path / "runs", *MEASURED[name]
    pytest.importorskip("torch" if name in (*PADDLES, *IN_TORCH) else "tensorflow")
    words = [f"experiment={name}", "scale=smoke", "telemetry.every=0", "env.OMP_NUM_THREADS=1"]
    words += [f"run_root={root}", f"python={warm.python()}"]
    words += ["framework=torch"] if name in IN_TORCH else []
    done = launcher(*words, state_home=tmp_path / "state", seconds=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = selection.run_names(str(root))
    results = [store.read_json(path / "result.json") for path in sorted((root / run / "arms").iterdir())]
    assert {(result["status"], result["observed"]["verdict"]) for result in results} == {("done", "proved")}
    assert [result["observed"]["dtype"] for result in results] == dtypes

    found = columns_of(done.stdout)
    assert {header: cells for header, cells in found.items() if header.startswith("published")} == columns
    ours = [f"our {header.removeprefix('published ')}" for header in columns if "loss" not in header]
    for header in {*ours, "our ratio", "our samples/s"} - {"our accuracy"}:  # random images have none
        assert all(float(each.replace(",", "")) > 0 for each in found[header]), header
    assert "form scale=smoke, which shows that it runs and says nothing of its speed" in done.stdout

    page = tmp_path / "page.html"
    assert (
        launcher("report", run, "--html", str(page), f"run_root={root}", state_home=tmp_path / "state").returncode == 0
    )
    text = page.read_text()
    assert [cell for cells in columns.values() for cell in cells if f">{cell}</td>" not in text] == []


def columns_of(said):
    """The columns of the table under "Comparison with published figures", by their headers."""
    lines = iter(said.partition("COMPARISON WITH PUBLISHED FIGURES")[2].splitlines())
    rows = [re.split(r"\s{2,}", line) for line in itertools.takewhile(bool, itertools.dropwhile(_not_header, lines))]
    return {header: [row[index] for row in rows[1:]] for index, header in enumerate(rows[0])}


def _not_header(line):
    return not line.startswith("arm  ")
