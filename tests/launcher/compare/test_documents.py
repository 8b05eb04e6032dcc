"""What a report is of: its title, and the order of the runs of a search."""

from __future__ import annotations

import pytest

from launcher.compare import documents
from launcher.executors import backends
from launcher.report.document import Curves
from launcher.runs import selection, store
from tests.launcher import run_folders
from tests.launcher.compare.folders import NOISE, TWICE, plan_of
from tests.launcher.report import folders
from tests.launcher.report.folders import OTTER, OWL, SWEEP


def reported(root, *names):
    found = selection.find_all(names, [str(root)])
    return documents.of(found, list(dict.fromkeys(run for one in found for run in one.runs)))


@pytest.mark.parametrize(
    ("lowest", "order", "lead"),
    [
        (True, ["001", "000", "002", "003"], "A search by eval.score, lowest first. The best is 001 seed=1, with 1."),
        (False, ["000", "001", "002", "003"], "A search by eval.score, highest first. The best is 000 seed=0, with 2."),
    ],
)
def test_the_runs_of_a_search_are_best_first_and_those_without_the_measure_last(root, lowest, order, lead):
    for number, measured in enumerate(({"score": 2.0}, {"score": 1.0}, {}, {})):
        planned = {"swept": [["seed", number]]}
        folders.run(root, f"{SWEEP}-{number:03}", planned=planned, resulting={"eval": measured})
    assert reported(root, SWEEP).lead == ()
    folder = store.search_folder(str(root), SWEEP)
    folder.mkdir(parents=True)
    store.write_json(folder / store.SEARCH, {"schema": 1, "metric": "eval.score", "lowest": lowest})
    report = reported(root, SWEEP)
    assert report.lead == (lead,)
    assert [row[0].text[:3] for row in report.sections[0].parts[0].rows] == order
    for number in (0, 1):
        store.write_json(root / f"{SWEEP}-{number:03}" / "result.json", run_folders.result(eval={}))
    assert reported(root, SWEEP).lead == (lead.partition(" The best")[0],)


def test_a_few_runs_are_named_in_the_title_and_many_counted(root):
    names = [OTTER, OWL, *(f"20260102-030407-calm-{word}" for word in ("fox", "hen", "elk"))]
    for name in names:
        folders.run(root, name, steps=1)
    assert reported(root, OTTER).title == OTTER
    assert reported(root, *names[:2]).title == "brave-otter and brave-owl"
    assert reported(root, *names[:4]).title == "brave-otter, brave-owl, calm-fox and calm-hen"
    assert reported(root, *names).title == "5 runs and sweeps"


def test_a_comparison_alone_is_reported_by_its_arms_and_a_run_alone_by_its_curves(root):
    plan_of(folders.run(root, OWL), ("o0", NOISE), ("o2", TWICE))
    folders.run(root, OTTER)
    assert reported(root, OWL).title == f"mnist-o0, {OWL}"
    assert reported(root, OWL, OTTER).title == "brave-owl and brave-otter"
    alone = {seen.run.id: documents.of_one(seen) for seen in backends.states_of(selection.newest([str(root)], 9))}
    assert alone[OWL].title == f"mnist-o0, {OWL}"
    assert any(isinstance(part, Curves) for section in alone[OTTER].sections for part in section.parts)
