"""The folder of fetched images, where another user may write too."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from launcher.containers import store
from tests.launcher import users
from tests.launcher.users import User

pytestmark = users.needs_root

DIGEST = "sha256:" + "5" * 64
TRIED = """
import sys
from pathlib import Path
from launcher.containers import pull, references, store
from launcher.containers.runtime import Runtime
cache, what = Path(sys.argv[1]), sys.argv[2]
digest = "sha256:" + "5" * 64
try:
    if what == "lock":
        with store.locked(cache, "5" * 64, lambda: print("waits")):
            print("locked")
    elif what == "part":
        with store.part(cache, "5" * 64) as folder:
            print("part", folder)
    elif what == "name":
        store.remember(cache, "docker.io/library/x:1", digest)
        print("known", store.lookup(cache, "docker.io/library/x:1"))
    elif what == "lookup":
        print("known", store.lookup(cache, "docker.io/library/x:1"))
    else:
        image = references.resolve(f"docker.io/library/x@{digest}")
        print("stored", pull.stored(image, Runtime(kind="apptainer"), cache))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def cache(open_folder: Path) -> Path:
    folder = open_folder / "images"
    for path in (folder, folder / "locks", folder / "names"):
        path.mkdir()
        path.chmod(0o777)
    return folder


def tried(user: User, cache: Path, what: str) -> str:
    done = user.run(users.python(), "-c", TRIED, cache, what)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_link_in_the_place_of_a_lock_empties_no_file(alice: User, mallory: User, cache: Path) -> None:
    thesis = alice.write(alice.home / "thesis", "all of it")
    mallory.run("ln", "-s", thesis, cache / "locks" / ("5" * 64))
    assert tried(alice, cache, "lock").startswith("OSError")
    assert thesis.read_text() == "all of it"


def test_a_pipe_in_place_of_a_lock_blocks_no_process(alice: User, mallory: User, cache: Path) -> None:
    mallory.run("mkfifo", "-m", "666", cache / "locks" / ("5" * 64))
    assert "it is not a regular file" in tried(alice, cache, "lock")


def test_users_of_one_cache_share_its_locks(alice: User, mallory: User, cache: Path) -> None:
    assert tried(mallory, cache, "lock") == "locked"
    assert tried(alice, cache, "lock") == "locked"


def test_a_link_in_the_place_of_a_folder_of_locks_is_not_followed(alice: User, mallory: User, cache: Path) -> None:
    own = alice.home / "own"
    alice.run("mkdir", own)
    (cache / "locks").rmdir()
    mallory.run("ln", "-s", own, cache / "locks")
    assert "a link stands in the place of a folder" in tried(alice, cache, "lock")
    assert not list(own.iterdir())


def test_a_link_in_the_place_of_what_is_being_fetched_changes_no_folder(
    alice: User, mallory: User, cache: Path
) -> None:
    own = alice.home / "own"
    alice.run("mkdir", "-m", "0500", own)
    mallory.run("ln", "-s", own, cache / f".part-{'5' * 64}")
    tried(alice, cache, "part")
    assert own.stat().st_mode & 0o777 == 0o500


def test_an_image_or_a_name_that_a_third_user_put_there_is_not_used(alice: User, mallory: User, cache: Path) -> None:
    """Whose the folder is may put images into it: whoever names the folder trusts them."""
    image = mallory.write(cache / f"sha256-{'5' * 64}.sif", "evil")
    assert tried(alice, cache, "name") == f"known {DIGEST}"
    assert "belongs to uid 61002" in tried(alice, cache, "image")
    name = next((cache / "names").iterdir())
    target = name.readlink()
    name.unlink()
    mallory.run("ln", "-s", target, name)
    assert tried(alice, cache, "lookup") == "known"
    image.unlink()
    image.write_bytes(b"\0" * 32 + b"SIF_MAGIC" + b"\0" * 87)
    os.chown(image, alice.uid, alice.uid)
    assert tried(alice, cache, "image") == f"stored {image}"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_no_other_user_can_write_into_a_new_cache(alice: User, umask: int) -> None:
    cache = alice.home / "cache/launcher/images"
    done = alice.run(users.python(), "-c", TRIED, cache, "name", umask=umask)
    assert done.stdout.strip() == f"known {DIGEST}", done.stderr
    folders = [alice.home / "cache", *(path for path in (alice.home / "cache").rglob("*") if not path.is_symlink())]
    assert len(folders) == 4 and all(folder.stat().st_mode & 0o722 == 0o700 for folder in folders)


def test_folders_in_a_cache_of_a_group_are_the_groups_too(alice: User, mallory: User, cache: Path) -> None:
    shared = cache / "shared"
    shared.mkdir()
    os.chown(shared, alice.uid, users.GROUP)
    shared.chmod(0o2770)
    for user in (alice, mallory):
        done = user.run(users.python(), "-c", TRIED, shared, "lock", umask=0o002)
        assert done.stdout.strip() == "locked", done.stdout


def test_a_link_in_the_place_of_an_image_is_not_run(alice: User, mallory: User, cache: Path) -> None:
    other = alice.write(alice.home / "other.sif", "another image of one's own")
    mallory.run("ln", "-s", other, cache / f"sha256-{'5' * 64}.sif")
    assert "is not a regular file" in tried(alice, cache, "image")


def test_an_image_that_was_cut_short_is_not_complete(tmp_path: Path) -> None:
    header = b"\0" * 32 + b"SIF_MAGIC" + b"\0" * 71 + struct.pack("<2q", 128, 10)
    path = tmp_path / "image.sif"
    for content, complete in (
        (header + b"x" * 10, True),
        (header + b"x" * 9, False),
        (header[:127], False),
        (b"", False),
        (b"\0" * 138, False),
    ):
        path.write_bytes(content)
        assert store.is_complete(path) is complete
