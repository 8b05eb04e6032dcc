import pytest

from launcher.commands import cancel
from launcher.executors import backends
from launcher.runs import selection, store

from ..run_folders import DEAF, NAME, STEPPING, finished, make, start, state, until

SWEEP = "20260103-000000-calm-lake"


def test_a_run_is_asked_to_save_and_stop(root, capsys):
    folder = make(root, trainer=STEPPING)
    start(folder)
    until(lambda: (folder / "metrics.jsonl").exists())
    assert cancel.main(["brave"]) == 0
    found = capsys.readouterr()
    assert found.out.startswith(f"{NAME}  cancelled after 1m05s: on request, saved at step ")
    assert "asked 1 run to save and stop" in found.err
    assert state(folder).name == "cancelled"
    assert selection.unfinished([str(root)]) == []


def test_now_kills(root, capsys):
    folder = make(root, trainer=DEAF)
    start(folder)
    until(lambda: state(folder).name == "running")
    assert cancel.main(["--now", NAME]) == 0
    found = capsys.readouterr()
    assert "cancelled" in found.out and found.err == f"killing {NAME}\n", "nothing is waited for"
    assert backends.with_processes({str(folder): store.load(str(folder))}) == set()


@pytest.mark.parametrize("name", ["done", "failed", "cancelled", "lost"])
def test_cancelling_a_run_that_has_ended_reports_that(root, name, capsys):
    folder = finished(root, state="running" if name == "lost" else name)
    assert cancel.main([NAME]) == 0
    assert capsys.readouterr().out.startswith(f"{NAME}  already {name}")
    assert not (folder / "cancelled").exists() and not (folder / "STOP").exists()


def test_cancelling_a_sweep_cancels_all_its_runs(root, capsys):
    cells = [make(root, f"{SWEEP}-00{index}", trainer=STEPPING) for index in range(3)]
    store.write_sweep(root, SWEEP, [cell.name for cell in cells], {})
    driver = start(*cells)
    until(lambda: (cells[0] / "metrics.jsonl").exists())
    assert cancel.main(["calm"]) == 0
    driver.wait(60)
    assert [state(cell).name for cell in cells] == ["cancelled"] * 3
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [cell.name for cell in cells]


def test_without_a_run_it_is_the_newest_and_that_is_said(root, capsys):
    finished(root, "20200101-000000-calm-lake")
    finished(root)
    assert cancel.main([]) == 0
    found = capsys.readouterr()
    assert found.out.startswith(f"{NAME}  already done") and found.err == f"newest run: {NAME}\n"
