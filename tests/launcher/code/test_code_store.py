"""Where the code of runs lies: nobody else's, what its name says, and the caller's alone at every umask."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.code import code_store, snapshot
from launcher.code.code_archive import packed_files
from launcher.errors import UsageError
from launcher.executors.ssh import submit_server
from tests.launcher import users
from tests.launcher.users import User


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The files of a package, by their names in a snapshot."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/train.py"):
        (package / name).write_text(f"print({name!r})")
    return {"package/__init__.py": package / "__init__.py", "package/inner/train.py": package / "inner" / "train.py"}


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process: nothing was checked before."""
    monkeypatch.setattr(code_store, "_checked", set())


def laid(tmp_path: Path, files: dict[str, Path]) -> Path:
    return code_store.store(tmp_path / ".code", snapshot.digest_of(files), files)


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077, 0o177])
def test_every_folder_of_a_snapshot_is_its_users_alone_at_every_umask(
    umask: int, tmp_path: Path, files: dict[str, Path]
) -> None:
    before = os.umask(umask)
    try:
        target = laid(tmp_path, files)
    finally:
        os.umask(before)
    inside = [target.parent, target, *target.rglob("*")]
    folders = [path for path in inside if path.is_dir()]
    assert len(folders) == 4
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in inside if path.is_file()} == {0o400}


def rewrite(path: Path) -> None:
    path.chmod(0o600)
    path.write_text("print('other code')")
    path.chmod(0o400)


def link_to_a_copy(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".copy")))


@pytest.mark.parametrize("damage", [rewrite, Path.unlink, link_to_a_copy])
def test_a_snapshot_with_a_file_that_is_changed_missing_or_a_link_is_not_used(
    damage: Callable[[Path], None], tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = laid(tmp_path, files)
    (target / "package" / "events.log").touch()  # as a job writes beside the code
    assert laid(tmp_path, files) == target
    damage(target / "package" / "inner" / "train.py")
    monkeypatch.setattr(code_store, "_checked", set())
    with pytest.raises(UsageError, match="does not match its digest"):
        laid(tmp_path, files)


@users.needs_root
def test_a_link_that_a_job_left_beside_the_code_is_not_followed(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, data = laid(tmp_path, files), tmp_path / "data"
    data.mkdir()
    (data / "of another").touch()
    os.chown(data / "of another", 61002, -1)
    (target / "package" / "data").symlink_to(data)
    assert laid(tmp_path, files) == target
    monkeypatch.setattr(code_store, "_checked", set())
    os.chown(target / "package" / "inner", 61002, -1)
    with pytest.raises(UsageError, match=r"package/inner belongs to uid 61002: the code in .* is not run"):
        laid(tmp_path, files)


def test_a_snapshot_that_another_launcher_lays_meanwhile_is_used(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, digest, close = tmp_path / ".code", snapshot.digest_of(files), code_store._close

    def close_late(folder: Path, files: dict[str, Path]) -> None:
        close(folder, files)
        if folder != place / digest:
            shutil.copytree(folder, place / digest)

    monkeypatch.setattr(code_store, "_close", close_late)
    assert laid(tmp_path, files) == place / digest
    assert [path.name for path in place.iterdir() if path.is_dir()] == [digest]


@pytest.mark.parametrize("umask", [0, 0o022])
def test_every_folder_of_a_snapshot_sent_over_ssh_is_its_users_alone(
    umask: int, tmp_path: Path, files: dict[str, Path]
) -> None:
    root, digest = tmp_path / "away" / "runs", snapshot.digest_of(files)
    sent, folder = packed_files(files), str(root / ".code" / digest)
    before = os.umask(umask)
    try:
        submit_server.write_code(sent, folder, shared=False)
    finally:
        os.umask(before)
    folders = [root.parent, root, *(path for path in root.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert [path.name for path in (root / ".code").iterdir() if path.is_dir()] == [digest]
    assert submit_server.has_code(folder)


def test_code_sent_over_ssh_is_laid_under_the_lock_of_a_file(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS has no lock of a folder for other nodes."""
    real, locked = fcntl.flock, []

    def noted(file: int, operation: int) -> None:
        locked.append(stat.S_ISREG(os.fstat(file).st_mode))
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", noted)
    submit_server.write_code(packed_files(files), str(tmp_path / ".code" / snapshot.digest_of(files)), shared=False)
    assert locked == [True]


WORDS = ("gpus=0", "steps=2", "data=synthetic", "detach=true")


@users.needs_root
@pytest.mark.parametrize("laid_by_mallory", ["snapshot", "folder"])
def test_code_that_another_user_laid_under_a_digest_is_not_run(
    laid_by_mallory: str, alice: User, mallory: User, open_folder: Path
) -> None:
    """Digests of published code are known to everybody, and so is where snapshots lie."""
    root = open_folder / "runs"
    root.mkdir()
    root.chmod(0o1777)
    planned = alice.launcher("plan", *WORDS, "--json", f"run_root={root}")
    assert planned.returncode == 0, planned.stderr
    digest = json.loads(planned.stdout)["plans"][0]["code"]
    if laid_by_mallory == "snapshot":
        alice.run("mkdir", "-m", "0777", root / ".code")
    evil = mallory.write(root / ".code" / digest / "recipes" / "__init__.py", "open('/tmp/evil', 'w')")
    assert evil.exists()
    done = alice.launcher(*WORDS, f"run_root={root}")
    assert done.returncode == 2, done.stdout
    assert "uid 61002" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in root.iterdir() if path.name.startswith("2")] == []


@users.needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (61002, 0o1777, "it belongs to uid 61002, who could replace your code"),
        (0, 0o777, "others could replace your code"),
    ],
)
def test_a_root_in_which_others_could_swap_folders_takes_no_run(
    owner: int, mode: int, why: str, alice: User, open_folder: Path
) -> None:
    root = open_folder / "runs"
    root.mkdir()
    os.chown(root, owner, owner)
    root.chmod(mode)
    done = alice.launcher(*WORDS, f"run_root={root}")
    assert done.returncode == 2 and why in done.stderr
    assert list(root.iterdir()) == []


@users.needs_root
def test_a_full_disk_leaves_no_part_of_a_compiled_module_in_a_snapshot(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        module = tmp_path / "module.py"
        module.write_text("".join(f"def function_{number}(): return {number}\n" for number in range(200)))
        files = {"pkg/module.py": module}
        digest = snapshot.describe(tmp_path, files).digest
        target = code_store.store(disk / ".code", digest, files)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PYTHONPATH"] = str(target)

        def imported() -> str:
            argv = [sys.executable, "-c", "import pkg.module"]
            return subprocess.run(argv, env=environment, capture_output=True, text=True).stderr

        with contextlib.suppress(OSError), open(disk / "filling", "wb", buffering=0) as filling:
            while True:
                filling.write(bytes(4096))
        os.truncate(disk / "filling", (disk / "filling").stat().st_size - 4096)
        assert imported() == ""
        (disk / "filling").unlink()
        assert imported() == ""
        assert [path.name for path in (target / "pkg").iterdir() if path.is_dir()] == []
    finally:
        subprocess.run(["umount", disk], check=True)
