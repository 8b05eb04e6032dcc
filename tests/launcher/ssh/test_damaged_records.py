"""Damaged and forbidden files about runs on other hosts hide no other run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from launcher.runs import processes, remote_record
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh import remote_status
from launcher.ssh.status_answer import Answer
from tests.launcher import run_folders
from tests.launcher.ssh.hostile import needs_sshd
from tests.launcher.ssh.victim import OTHER, RUN, UNHURRIED

pytestmark = needs_sshd

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
LOOKING = [["ls"], ["ls", RUN], ["ls", "--json"], ["watch", OTHER], ["report", OTHER], ["cancel", RUN], ["logs", RUN]]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_damaged_pointer_costs_its_own_run_and_hides_no_other(victim, words):
    for damage in POINTERS:
        (victim.run / "elsewhere.json").write_text(damage)
        victim.before = victim.state()
        said = victim.type_only(*words)
        assert "Traceback" not in said.err
        if words == ["ls"]:
            assert (
                said.code == 0 and OTHER in said.out and "elsewhere.json in" in said.out and "can't be read" in said.out
            )


def test_a_run_that_is_removed_here_while_its_host_is_asked_hides_no_other(tmp_path):
    address = Address(destination="box")
    pointer = Pointer(address=address, root="/r", token="t", submitter=processes.identity(os.getpid()))
    state = remote_status._taken(Run(str(tmp_path), OTHER), pointer, Answer(State("running")))
    assert state.name == "unreachable" and "No such file" in state.reason


def test_a_damaged_record_of_a_known_state_is_asked_for_again(victim):
    victim.deadline(UNHURRIED)
    pointer = Pointer(address=victim.liar.address(), root="/runs", token="t", created=time.time())
    ids = [f"20260101-0000{number:02}-brave-otter" for number in range(len(KNOWN))]
    folders = [remote_record.create(each, pointer) for each in ids]
    for words in (["ls"], ["ls", "--json"], ["ls", ids[0]]):
        for folder, damage in zip(folders, KNOWN, strict=True):
            (folder / "known.json").write_text(damage)
        said = victim.type_only(*words)
        assert said.code == 0 and said.out.count("running") == (1 if words[-1] == ids[0] else len(ids) + 1)


@pytest.mark.parametrize(
    "damage", ["{", "null", '{"runs": 5}', '{"runs": [5, null, "../x", [1]]}', '{"runs": {"a": 1}}', "[" * 100_000]
)
def test_a_damaged_record_of_a_sweep_hides_nothing(victim, damage):
    sweep = "20260102-030407-late-lark"
    folder = victim.folder / "here" / ".sweeps"
    folder.mkdir()
    (folder / f"{sweep}.json").write_text(damage)
    (folder / "\x1b[2Jx.json").write_text(damage)
    assert OTHER in victim.type_only("ls").out
    for words in (["ls", sweep], ["report", sweep], ["cancel", sweep], ["ls", "late"]):
        said = victim.type_only(*words)
        assert OTHER not in said.out


def test_an_ssh_configuration_that_cannot_be_read_hides_no_other_run(victim):
    (victim.folder / "broken").write_text("Host *\n  Port none\n")
    for transport in ("fabric", "openssh"):
        address = dataclasses.replace(victim.liar.address(transport=transport), config=str(victim.folder / "broken"))
        remote_record.write(victim.run, Pointer(address=address, root="/r", token="t", created=time.time()))
        said = victim.type_only("ls")
        assert said.code == 0 and OTHER in said.out and "unreachable" in said.out
        address = dataclasses.replace(address, config=str(victim.folder / "none"))
        remote_record.write(victim.run, Pointer(address=address, root="/r", token="t", created=time.time()))
        assert OTHER in victim.type_only("ls").out


def test_an_unreadable_run_folder_hides_no_other_run(tmp_path):
    """As a user that is not root, to whom permissions apply."""
    if os.getuid() != 0:
        pytest.skip("becomes another user, which only root can")
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        root = home / "runs"
        root.mkdir()
        run_folders.finished(root, OTHER)
        shut = run_folders.finished(root, RUN)
        closed = home / "closed"
        run_folders.finished(closed, "20260102-030409-closed-cove")
        state = home / "state"
        (state / "launcher").mkdir(parents=True)
        (state / "launcher/roots").write_text(f"{closed}\n{root}\n")
        subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
        for path in (shut, closed):
            path.chmod(0)
        home.chmod(0o755)
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *run_folders.command("ls")]
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "HOME": str(home)}
        said = subprocess.run(as_nobody, capture_output=True, text=True, env=environment, cwd="/")
        assert said.returncode == 0, said.stderr
        assert OTHER in said.stdout and "done" in said.stdout and RUN in said.stdout
        assert said.stderr == f"{closed} may not be read, so its runs are not listed\n"
        program = "import json, sys; from launcher.executors.ssh import handlers as answers; "
        program += "print(json.dumps(list(answers.look(json.loads(sys.argv[1]), False))))"
        asked = [{"root": str(root), "id": each, "stamps": {}, "arms": []} for each in (RUN, OTHER)]
        there = subprocess.run(
            [*as_nobody[:4], sys.executable, "-c", program, json.dumps(asked)],
            capture_output=True, text=True, env=environment, cwd="/",
        )  # fmt: skip
        first, second = json.loads(there.stdout)
        assert second["state"][0] == "done" and ("error" in first or first["state"][0] != "done")
    finally:
        shutil.rmtree(home)
