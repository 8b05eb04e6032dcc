"""What is said and left on a disk that is really full: a small file system of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_launcher import metrics, run_folder
from amp_launcher.loop import checkpoint
from launcher.runs import selection, store
from tests.launcher.run_folders import called
from tests.launcher.stand_in import lay

FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid():
        pytest.skip("only root may mount a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    path = disk / "filler"
    with open(path, "wb") as filler, contextlib.suppress(OSError):
        while True:
            os.write(filler.fileno(), bytes(4096))
    return path


def test_a_snapshot_without_room_names_the_full_disk_and_not_the_file_that_was_copied(disk: Path) -> None:
    (disk / "other").write_bytes(bytes(700 * 1024))
    done = called("cluster=local", "gpus=0", "steps=1", f"run_root={disk}/runs")
    assert done.returncode == 2
    assert FULL in done.stderr and f"{FULL}: {disk}/runs/.code/" in done.stderr
    assert selection.run_names(f"{disk}/runs") == [] and os.listdir(disk / "runs/.code") == []


def test_records_without_room_are_named_and_leave_nothing_aside(disk: Path) -> None:
    fill(disk)
    with pytest.raises(OSError, match=f"{FULL}: '{disk}/status.json'"):
        store.write_json(disk / "status.json", {"reason": "x" * 10_000})
    with pytest.raises(OSError, match=f"{FULL}: '{disk}/result.json'"):
        run_folder.write_json(disk / "result.json", {"reason": "x" * 10_000})
    assert os.listdir(disk) == ["filler"]


def test_a_checkpoint_and_metrics_without_room_are_named(disk: Path) -> None:
    writer = metrics.MetricsWriter(disk / "metrics.jsonl")
    (disk / "checkpoints").mkdir()
    fill(disk)
    with pytest.raises(OSError, match=f"{FULL}: '{disk}/metrics.jsonl'"):
        writer.append([{"event": "x" * 10_000}])
    with pytest.raises(OSError, match=FULL):
        checkpoint.save(disk / "checkpoints", 1, "state", lambda file: file.write(bytes(10_000)) and None, {}, 1)
    assert os.listdir(disk / "checkpoints") == []


# In its first attempt it fills the disk and dies in the middle of writing its result.
DIES = """
run = sys.argv[-1][4:]
if os.environ["LAUNCHER_ATTEMPT"] == "1":
    open(run + "/.result.json.7", "w").write("{")
    open(run + "/attempts/1/.failed.json.7", "w").write("{")
    with open(os.environ["FILLER"], "wb") as filler:
        try:
            while True: os.write(filler.fileno(), bytes(4096))
        except OSError: os.kill(os.getpid(), 9)
"""


def test_a_run_says_that_its_folder_is_full_and_its_next_attempt_deletes_what_was_left_aside(
    disk: Path, program: Path
) -> None:
    _, folder = lay(disk, program, env={"BEHAVIOUR": DIES, "FILLER": str(disk / "filler")})
    subprocess.run(["bash", str(folder / "run.sh")], check=False)
    status = store.read_or_empty(folder / "status.json")
    assert status["state"] == "failed"
    assert status["reason"].endswith(f"{FULL} in the run's folder")
    left = [folder / ".result.json.7", folder / "attempts/1/.failed.json.7"]
    assert all(path.exists() for path in left)
    (disk / "filler").unlink()
    subprocess.run(["bash", str(folder / "run.sh")], check=False)
    assert not any(path.exists() for path in left)
