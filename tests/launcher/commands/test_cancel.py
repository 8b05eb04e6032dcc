import pytest

from launcher.commands import cancel
from launcher.executors import backends
from launcher.runs import processes, run_files, selection, store

from ..run_folders import DEAF, NAME, STEPPING, begin, finished, make, running, start, state, submit, sweep, until


def test_a_run_is_asked_to_save_and_stop(root, capsys):
    folder = begin(root, STEPPING)
    until(lambda: (folder / "metrics.jsonl").exists())
    assert cancel.main(["brave"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{NAME}  cancelled after 1m05s: on request, saved at step ")
    assert printed.err.startswith("asked 1 run to save and stop") and "killing" not in printed.err
    assert state(folder).name == "cancelled"
    assert selection.unfinished([str(root)]) == []


def test_now_kills_without_waiting(root, capsys):
    folder = running(root, DEAF)
    assert cancel.main(["--now", NAME]) == 0
    printed = capsys.readouterr()
    assert "cancelled" in printed.out and printed.err == f"killing {NAME}\n"
    assert backends.with_processes({str(folder): run_files.load(str(folder))}) == set()


@pytest.mark.parametrize("name", ["done", "failed", "cancelled", "lost"])
def test_cancelling_a_run_that_has_ended_reports_that(root, name, capsys):
    folder = finished(root, state="running" if name == "lost" else name)
    finished(root, "20200101-000000-old-one")
    for words, message in (([NAME], ""), ([], f"newest run: {NAME}\n")):
        assert cancel.main(words) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"{NAME}  already {name}") and printed.err == message
    assert not (folder / "cancelled").exists() and not (folder / "STOP").exists()


def test_a_run_that_is_elsewhere_is_told_of_with_where_and_nothing_else(root, capsys):
    folder, process = make(root), processes.Identity("n7", "another", 1, 1)
    submit(folder, process)
    store.write_json(folder / "status.json", {"state": "running", "attempt": 1, "process": processes.to_json(process)})
    assert cancel.main(["--now", NAME]) == 3
    assert capsys.readouterr().out == f"{NAME}  not ended: it runs on n7: cancel it there\n"


def test_cancelling_a_sweep_cancels_all_its_runs(root, capsys):
    cells = sweep(root, 3, make, trainer=STEPPING)
    driver = start(*cells)
    until(lambda: (cells[0] / "metrics.jsonl").exists())
    assert cancel.main(["calm"]) == 0
    driver.wait()
    assert [state(cell).name for cell in cells] == ["cancelled"] * 3
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [cell.name for cell in cells]
