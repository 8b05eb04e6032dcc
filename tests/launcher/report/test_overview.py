"""All runs of a root as one table."""

from __future__ import annotations

import json
import os

from launcher.executors.backends import states_of
from launcher.report import overview
from launcher.runs import processes
from launcher.runs.store import Run
from tests.launcher import run_folders
from tests.launcher.report import folders
from tests.launcher.report.folders import OTTER, OWL


def rows(*paths, **pages):
    """The lead, and the cells of each run by column."""
    seen = states_of([Run(str(path.parent), path.name) for path in paths])
    report = overview.document("all", seen, 0.0, pages)
    (table,) = report.sections[0].parts
    return report.lead, [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_a_reason_is_shown_in_so_many_letters_except_of_a_run_that_is_running(root):
    failed = run_folders.finished(root, OTTER, "failed", reason="it ended " + "x" * 100)
    (lead,), (row,) = rows(failed)
    assert lead == "1 run: 1 failed."
    assert row["state"].text.startswith("failed: it ended x") and len(row["state"].text) == overview.REASON
    me = processes.identity(os.getpid())
    live = run_folders.finished(root, OWL, "running", reason="resumed", process=processes.to_json(me))
    run_folders.submit(live, me)
    (lead,), (first, _) = rows(live, failed)
    assert (lead, first["state"].text) == ("2 runs: 1 running, 1 failed.", "running")


def test_the_last_loss_and_the_level_come_from_the_result_or_else_from_the_run_itself(root):
    done = folders.run(root, OTTER, resulting={"loss": {"first": 2.3}, "nonfinite": ["loss.last"]})
    bare = folders.run(root, OWL, "o1", steps=7)
    (bare / "result.json").unlink()
    _, (first, second) = rows(done, bare, **{OWL: "owl.html"})
    assert [row["loss"].text for row in (first, second)] == ["not finite", "0.3286"]
    assert [row["mode"].text for row in (first, second)] == ["o2 bfloat16", "o1"]
    assert [row["run"].link for row in (first, second)] == ["", "owl.html"]
    status = json.loads((bare / "status.json").read_text())
    assert second["started"].text == status["started"][:16].replace("T", " ")
