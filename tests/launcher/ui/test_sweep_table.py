from collections.abc import Sequence

from launcher.executors import backends
from launcher.runs.store import Run
from launcher.ui import sweep_table
from tests.launcher import run_folders


class Counted(Sequence):
    """Rows that count how often all of them are gone through."""

    def __init__(self, rows):
        self.rows, self.rounds = rows, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __iter__(self):
        self.rounds += 1
        return iter(self.rows)


def rounds(root, count):
    folders = run_folders.sweep(root, count, state="failed")
    seen = backends.states_of([Run(str(folder.parent), folder.name) for folder in folders])
    rows = Counted(sweep_table.cells(seen, 0.0))
    lines = sweep_table.lines(rows, 0, rows, 0.0)
    assert lines[1].startswith("000 ") and lines[count].startswith(f"{count - 1:03} ")
    assert (f"and {count - 4} more that failed" in lines) == (count > 4)
    return rows.rounds


def test_the_table_goes_through_all_cells_as_often_for_a_large_sweep_as_for_a_small_one(tmp_path):
    assert rounds(tmp_path / "small", 4) == rounds(tmp_path / "large", 40)
