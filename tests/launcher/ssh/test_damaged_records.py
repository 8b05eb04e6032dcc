"""Damaged and forbidden files about runs on other hosts hide no other run, and none of their commands is run."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from launcher.commands import shell
from launcher.errors import UsageError
from launcher.runs import processes, remote_record, run_roots
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh import remote_status
from launcher.ssh.status_answer import Answer
from tests.launcher import run_folders, users
from tests.launcher.ssh.victim import OTHER, RUN, UNHURRIED, pointer_to

NO_RECORDS = ("{", "null", "[1]", "[" * 100_000, "{}")
POINTER = {"address": {"destination": "b"}, "root": "/r", "token": "t", "submitter": None, "created": 1}
ADDRESSES = (
    None,
    {"destination": "-oProxyCommand=x"},
    {"destination": "a b:c"},
    {"destination": "b", "transport": "x"},
    {"destination": "b", "config": 5},
    {"destination": "b", "connect_timeout": "1"},
)
POINTERS = [
    *NO_RECORDS,
    *(json.dumps({**POINTER, "address": address}) for address in ADDRESSES),
    *(json.dumps({**POINTER, **change}) for change in ({"root": 5}, {"created": "x"})),
]
STATE = {"state": ["done", "", 1, 0, None, None, 0], "seen": 1, "step": None, "stamps": {}, "log": None}
CHANGES = (
    {"state": None},
    {"state": ["done"] * 20},
    {"seen": "x"},
    {"stamps": 5},
    {"stamps": {"plan.json": 5}},
    {"log": 5},
)
KNOWN = [*NO_RECORDS, *(json.dumps({**STATE, **change}) for change in CHANGES)]
LOOKING = [["ls", RUN], ["ls", "--json"], ["watch", OTHER], ["report", OTHER], ["cancel", RUN], ["logs", RUN]]


def test_a_damaged_pointer_costs_its_own_run_and_hides_no_other(victim):
    for damage in POINTERS:
        (victim.run / "elsewhere.json").write_text(damage)
        done = victim.type_only("ls")
        assert done.code == 0 and OTHER in done.out
        assert "elsewhere.json in" in done.out and "can't be read" in done.out
        for words in LOOKING:
            victim.type_only(*words)


def test_a_run_that_is_removed_here_while_its_host_is_asked_hides_no_other(tmp_path):
    address = Address(destination="box")
    pointer = Pointer(address=address, root="/r", token="t", submitter=processes.identity(os.getpid()))
    state = remote_status._kept(Run(str(tmp_path), OTHER), pointer, Answer(State("running"), 0, True, (), {})).state
    assert state.name == "unreachable" and "No such file" in state.reason


def test_a_damaged_record_of_a_known_state_is_asked_for_again(victim):
    victim.deadline(UNHURRIED)
    ids = [f"20260101-0000{number:02}-brave-otter" for number in range(len(KNOWN))]
    folders = [remote_record.create(run, pointer_to(victim.liar.address())) for run in ids]
    for words in (["ls"], ["ls", "--json"], ["ls", ids[0]]):
        for folder, damage in zip(folders, KNOWN, strict=True):
            (folder / "known.json").write_text(damage)
        done = victim.type_only(*words)
        assert done.code == 0 and done.out.count("running") == (1 if words[-1] == ids[0] else len(ids) + 1)


def test_an_ssh_configuration_that_cannot_be_read_hides_no_other_run(victim):
    (victim.folder / "broken").write_text("Host *\n  Port none\n")
    for transport in ("fabric", "openssh"):
        for name in ("broken", "none"):
            address = Address(destination="liar", transport=transport, config=str(victim.folder / name))
            remote_record.write(victim.run, pointer_to(address))
            done = victim.type_only("ls")
            assert done.code == 0 and OTHER in done.out and "unreachable" in done.out


@users.needs_root
def test_an_unreadable_run_folder_hides_no_other_run(alice, open_folder):
    """As a user that is not root, to whom permissions apply."""
    root, closed = open_folder / "runs", open_folder / "closed"
    for folder, run in ((root, OTHER), (root, RUN), (closed, "20260102-030409-closed-cove")):
        folder.mkdir(exist_ok=True)
        run_folders.finished(folder, run)
    subprocess.run(["chown", "-R", str(alice.uid), str(root), str(closed)], check=True)
    for path in (root / RUN, closed):
        path.chmod(0)
    alice.write(alice.home / ".local/state/launcher/roots", f"{closed}\n{root}\n")
    done = alice.launcher("ls")
    assert done.returncode == 0, done.stderr
    assert OTHER in done.stdout and "done" in done.stdout and RUN in done.stdout
    assert done.stderr == f"{closed} may not be read, so its runs are not listed\n"
    program = "import json, sys; from launcher.executors.ssh import handlers; "
    program += "print(json.dumps(list(handlers.look(json.loads(sys.argv[1]), False))))"
    runs = [{"root": str(root), "id": run, "stamps": {}, "arms": []} for run in (RUN, OTHER)]
    answered = alice.run(users.python(), "-c", program, json.dumps(runs))
    first, second = json.loads(answered.stdout)
    assert second["state"][0] == "done" and ("error" in first or first["state"][0] != "done")


def test_a_shell_of_a_local_run_ignores_a_pointer_in_its_folder(victim):
    """A pointer names a configuration, and that may name a command."""
    folder = victim.folder / "here" / OTHER
    remote_record.write(folder, pointer_to(victim.liar.address()))
    assert shell._pointer(Run(str(folder.parent), OTHER)) is None
    assert shell._pointer(Run(str(victim.run.parent), RUN)).address == victim.liar.address()
    (victim.run / remote_record.POINTER).write_text("{")
    with pytest.raises(UsageError, match="can't be read"):
        shell._pointer(Run(str(victim.run.parent), RUN))


def test_remote_records_are_recognized_by_any_path(victim, tmp_path):
    """Else what their hosts say of queues and processes would be taken for this machine's."""
    (tmp_path / "alias").symlink_to(victim.run.parent)
    assert run_roots.is_remote(str(tmp_path / "alias")) and not run_roots.is_remote(str(victim.folder / "here"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user, which only root can make")
def test_a_pointer_that_another_user_wrote_is_not_followed(victim):
    """It names an SSH configuration, and that may name a ProxyCommand."""
    owned, config = victim.outside / "owned", victim.outside / "config"
    config.write_text(f"Host *\n  ProxyCommand touch {owned}\n")
    for transport in ("fabric", "openssh"):
        address = Address(destination="liar", transport=transport, config=str(config))
        remote_record.write(victim.run, pointer_to(address))
        assert victim.type_only("ls").code == 0 and owned.exists()
        owned.unlink()
        os.chown(victim.run / remote_record.POINTER, 61001, 61001)
        done = victim.type_only("ls")
        assert done.code == 0 and OTHER in done.out and "can't be read" in done.out and not owned.exists()
        (victim.run / remote_record.POINTER).unlink()
