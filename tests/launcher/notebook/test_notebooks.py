"""Notebooks, executed by a real kernel."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from launcher import find
from tests.launcher import warm
from tests.launcher.run_folders import until

WORDS = "'recipe=simplenet', 'batch=16', 'train.width=32', 'device=cpu', 'telemetry.every=0', 'run_root={root}', "


def client_of(root: Path, *cells: str) -> NotebookClient:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(root)}}
    return NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True, resources=resources)


def html_of(cell: Any) -> str:
    """All that a cell shows as HTML."""
    return "".join(output["data"].get("text/html", "") for output in cell.outputs if "data" in output)


@pytest.fixture(autouse=True)
def _kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the person's own IPython, and this tree's launcher in the kernel."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def test_a_notebook_shows_its_runs_as_a_table_their_report_as_a_page_and_a_mistake_as_a_sentence(root: Path) -> None:
    """A script that it starts gets none of its kernel's variables."""
    (root / "show.py").write_text("import os\nprint(sorted(os.environ))\n")
    words = WORDS.format(root=root)
    client = client_of(
        root,
        "from launcher import launch",
        f"runs = launch({words} 'amp=o0,o1', 'steps=3', 'python={warm.python()}')\nruns",
        "runs.wait()",
        "runs[0].report()",
        "print(runs)",
        "launch('amp=o9')",
        f"shown = launch('show.py', 'amp=none', 'run_root={root}', 'telemetry.every=0')\n"
        "shown.wait()\nprint(shown[0].job.stdout())",
    )
    _, started, waited, report, printed, wrong, variables = client.execute().cells
    assert "<th" in html_of(started) and "queued" in html_of(started)
    assert html_of(waited).count('<td style="text-align: left">done</td>') == 2 and len(waited.outputs) == 1
    assert html_of(report).startswith("<iframe srcdoc=") and "proved" in html_of(report)
    assert printed.outputs[0]["text"].splitlines()[1].split()[2] == "done"
    (error,) = wrong.outputs
    assert error["ename"] == "UsageError" and len(error["traceback"]) == 1
    assert error["traceback"][0].startswith("error: amp=o9 is not one of o0, o1")
    names = "".join(output["text"] for output in variables.outputs if output.get("name") == "stdout")
    assert "'PATH'" in names
    for name in ("FORCE_COLOR", "JPY_PARENT_PID", "MPLBACKEND", "PAGER"):
        assert f"'{name}'" not in names


def test_runs_outlive_a_kernel_that_is_killed(root: Path) -> None:
    words = WORDS.format(root=root)
    client = client_of(root, f"from launcher import launch\nlaunch({words} 'steps=30', 'python={warm.python()}')[0].id")
    with client.setup_kernel():
        cell = client.execute_cell(client.nb.cells[0], 0)
        name = cell.outputs[0]["data"]["text/plain"].strip("'")
        kernel = client.km.provisioner.pid
        os.kill(kernel, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{kernel}/fd").exists() or not os.listdir(f"/proc/{kernel}/fd"))
    runs = find(name, run_root=str(root))
    runs.wait(300)
    assert runs[0].state == "done" and len(runs[0].metrics()) == 30
