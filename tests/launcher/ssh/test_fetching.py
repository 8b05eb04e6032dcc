"""Fetching the files of runs: complete, once, and continued where a fetch was cut off."""

from __future__ import annotations

import os
import re

from launcher.executors import backends
from launcher.runs import store
from launcher.runs.store import Run
from tests.launcher.ssh.far import HOLD, until


def files(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def test_a_run_is_fetched_once_without_links_and_hidden_folders(far, tmp_path):
    assert "no run" in far.refused("fetch")
    (run,) = far.submit("steps=10")
    far.until(run, "done")
    there = files(far.folder(run))
    (far.folder(run) / "outside").symlink_to("/etc/passwd")
    (far.folder(run) / ".secrets").mkdir()
    (far.folder(run) / ".secrets/TOKEN").write_text("x")
    assert far.type("fetch", run, "into=x").code == 2
    refused = far.type("fetch", run, "to=/proc/x")
    assert refused.code == 2
    assert f"/proc/x/{run} can't be made: No such file or directory; name a folder that you may write to" in refused.err
    far.ok("fetch", run, f"to={tmp_path / 'got'}")
    got = tmp_path / "got" / run
    assert files(got) == there and "checkpoints/step/at" in there
    assert not (got / "outside").exists() and not (got / ".secrets").exists()
    assert backends.states_of([Run(str(got.parent), run)])[0].state.name == "done"
    assert far.type("fetch", run).code == 0
    assert f"{run}  0 files, 0 B fetched" in far.type("fetch", run).out
    (far.folder(run) / "result.json").write_text('{"schema": 1, "status": "done", "attempts": 1, "changed": true}')
    assert far.type("fetch", run).code == 0
    assert store.read_or_empty(far.pointer(run) / "result.json")["changed"] is True
    assert far.type("report", run).code == 0


def test_a_running_sweep_is_fetched_by_its_name_and_again_after_its_end(far, tmp_path):
    cells = far.submit("steps=9", "seed=1,2", HOLD)
    sweep, got = cells[0].rpartition("-")[0], tmp_path / "got"
    until(lambda: "step 1" in far.type("logs", cells[0]).out)
    assert far.type("fetch", sweep, f"to={got}").code == 0
    assert (got / cells[0] / "metrics.jsonl").stat().st_size > 0
    for cell in cells:
        far.release(cell)
        far.until(cell, "done")
    assert far.type("fetch", sweep, f"to={got}").code == 0
    assert [files(got / cell) for cell in cells] == [files(far.folder(cell)) for cell in cells]


def test_a_fetch_continues_a_partial_file_and_checks_it(far, tmp_path):
    (run,) = far.submit("steps=1")
    far.until(run, "done")
    large = far.folder(run) / "checkpoints/large"
    content = os.urandom(3 * 2**20)
    large.write_bytes(content)
    stamp = large.stat()
    part = tmp_path / run / f"checkpoints/.large.{stamp.st_size}-{stamp.st_mtime_ns}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content[: 2 * 2**20])
    done = far.type("fetch", run, f"to={tmp_path}")
    assert float(re.search(r"([0-9.]+) MiB fetched", done.out)[1]) < 2, "a third of the large file, and small ones"
    assert (tmp_path / run / "checkpoints/large").read_bytes() == content
    assert not part.exists()
    # One that is damaged is not taken for the file.
    (tmp_path / run / "checkpoints/large").unlink()
    part.write_bytes(b"x" * 2**20)
    done = far.type("fetch", run, f"to={tmp_path}")
    assert done.code == 1 and "fetch again" in done.err
    assert not (tmp_path / run / "checkpoints/large").exists()
    assert far.type("fetch", run, f"to={tmp_path}").code == 0
    assert (tmp_path / run / "checkpoints/large").read_bytes() == content
