"""Hosts that lie about their runs or themselves. Nothing that they send is written outside its run's folder, run, or
shown raw; a lie costs one line, and all other runs are shown."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys

import pytest

from amp_launcher.typed import build
from launcher.config.schema import SshCluster
from launcher.runs import address as addresses
from launcher.runs import remote_record, store
from launcher.runs.address import Address
from launcher.runs.store import Run
from launcher.ssh import bootstrap, host, remote_status
from tests.launcher import run_folders
from tests.launcher.ssh.hostile import answering
from tests.launcher.ssh.victim import BAD, LATE, NAMES, OTHER, REFUSED, RUN, SECONDS, UNHURRIED, pointer_to


def test_an_honest_answer_is_accepted(victim):
    """So that the attacks below fail for what is wrong in them."""
    victim.deadline(UNHURRIED)
    victim.liar.as_process = True
    victim.liar.says(answering("look", """look(status(files={"plan.json": [[2, 5], "{}"]}, step=7))"""))
    done = victim.type("ls")
    assert (done.code, done.err) == (0, "")
    assert RUN in done.out and "running" in done.out and "liar" in done.out and OTHER in done.out
    assert (victim.run / "plan.json").read_text() == "{}"
    victim.liar.says(answering("look", "look(None)"))
    assert BAD in victim.type_only("ls").out


def test_a_run_that_another_launcher_resumed_is_unfinished_again(victim):
    run, mark = Run(str(victim.run.parent), RUN), victim.run.parent / store.UNFINISHED / RUN
    for state, marked in (("done", False), ("running", True)):
        mark.unlink(missing_ok=True)
        victim.liar.says(answering("look", f"look(status(state=['{state}', '', 1, None, None, None, 0]))"))
        remote_status.look_again(run, remote_record.required(run))
        assert mark.exists() is marked


STATUS = {
    "state": "null 5 'done' [] {} ['done'] ['done']*20 ['exploded','',1,None,None,None] [['done'],'',1,None,None,None] "
    "['done',7,1,None,None,None] ['done','x'*5000,1,None,None,None] ['done','','1',None,None,None] "
    "['done','',-1,None,None,None] ['done','',10**30,None,None,None] ['done','',True,None,None,None] "
    "['done','',1,'0',None,None] ['done','',1,10**400,None,None] ['done','',1,None,5,None] ['done','',1,None,None,{}] "
    "['done','',1,None,'9'*5000,None]",
    "time": "null '1' -1 2**60",
    "begun": "null 'yes' 1",
    "attempts": "null {} 5 [0] ['1'] [1.5] [True] [10**9] [-1] list(range(200000)) [[1]]",
    "files": "null [] 5 {'plan.json':None} {'plan.json':'x'} {'plan.json':[[1,2],5]} {'plan.json':[[1],'x']} "
    "{'plan.json':[['1','2'],'x']} {'plan.json':[[1,2**70],'x']} {'plan.json':[[-1,2],'x']} {'plan.json':[[1,-2],'x']} "
    "{'plan.json':[None,'x']} {'plan.json':[[1,2],'\\ud800']} {'plan.json':[[1,2],'x'*3000000]} "
    "{'plan.json':[[1,2],'x','y']}",
    "step": "'7' -1 7.5 2**60 [7] True",
    "step_age": "'7' -1 7.5 2**60 [7] True",
    "idle": "'7' -1 7.5 2**60 [7] True",
    "log": "5 'x' ['p'] ['p',5] [5,[]] ['p',['x']*5000] ['p',[5]] ['p'*9999,[]]",
    "more": "null 'yes'",
}
"""Impossible values in the status of a run, as Python without blanks."""


FRAMES = (
    "answer([])",
    "answer(None)",
    "frame(b'J', b'{]')",
    "frame(b'J', b'\\xff\\xfe\\xfd')",
    "frame(b'J', b'[1]')",
    "frame(b'J', b'1')",
    "frame(b'J', b'[' * 500000)",
    "frame(b'J', b'{\"item\":' * 99999 + b'1' + b'}' * 99999)",
    "send('{\"item\": NaN}')",
    "send('{\"item\": ' + '9' * 100000 + '}')",
    "raw(b'Z\\0\\0\\0\\0')",
    "raw(b'Last login: yesterday\\n')",
    "raw(b'J\\xff\\xff\\xff\\xff')",
    "raw(b'K\\0\\0\\1\\0' + b'x' * 256)",
    "frame(b'B', b'x')",
    "frame(b'B', b'')",
    "send({})",
    "send({'error': 5, 'code': 2})",
    "send({'error': 'x'})",
    "send({'error': 'x', 'code': '2'})",
    "send({'error': 'x' * 100000, 'code': 2})",
    "while True: send({'say': 'x' * 1000})",
    "send({'say': 5})",
    "while True: frame(b'B', b'x' * 65536)",
)
"""Answers that are refused as a whole."""

ENDED = ("sys.exit()", "raw(b'J\\0\\0\\1\\0{'); sys.exit()")
SLOW = (
    "while True: beat(); time.sleep(0.1)",
    "while True: beat()",
    "for byte in b'J\\0\\0\\1\\0' + b' ' * 256: raw(bytes([byte])); time.sleep(0.2)",
    "time.sleep(60)",
)


def lies() -> list[str]:
    """All of them are refused at once."""
    of_files = [f"look(status(files={{{name!r}: [[1, 2], 'owned']}}))" for name in NAMES]
    of_status = [
        f"look(status({key}={'None' if value == 'null' else value}))"
        for key, values in STATUS.items()
        for value in values.split()
    ]
    of_runs = [f"look({value})" for value in ("None", "5", "[]", "'x'", "{}", "[status()]")]
    return [*of_files, *of_status, *of_runs, *FRAMES]


def check_lies(victim, bodies: list[str], expected: list[str]) -> None:
    """Hosts that all answer wrong: a line for each, and all other runs are shown."""
    runs = victim.runs(
        answering("look", body.replace("{outside}", str(victim.outside)).replace("{other}", OTHER)) for body in bodies
    )
    done = victim.type("ls", "--all")
    assert done.code == 0
    states = {line.split()[0]: line.split()[1] for line in done.out.splitlines() if line.startswith("2026")}
    assert states == {OTHER: "done", RUN: "running", **{run.id: "unreachable" for run in runs}}
    shown = [line for line in done.out.splitlines() if line.startswith("liar-")]
    for number, (body, run, text) in enumerate(zip(bodies, runs, expected, strict=True)):
        (line,) = [line for line in shown if line.startswith((f"liar-{number} ", f"liar-{number}: "))]
        assert text in line, body
        assert {path.name for path in run.folder.rglob("*")} == {"attempts", "elsewhere.json"}, body


def test_a_lie_costs_one_line_and_all_other_runs_are_shown(victim):
    victim.deadline(UNHURRIED)
    expected = {**dict.fromkeys(lies(), REFUSED), **dict.fromkeys(ENDED, "was lost")}
    check_lies(victim, list(expected), list(expected.values()))


def test_an_answer_that_does_not_come_costs_one_line_and_all_other_runs_are_shown(victim):
    victim.liar.says(answering("look", "time.sleep(0.1)\nlook(status())"))
    check_lies(victim, list(SLOW), [LATE] * len(SLOW))
    victim.liar.says(answering("cancel", SLOW[0]))
    done = victim.type_only("cancel", "--now", RUN)
    assert done.code == 1 and LATE in done.out, "it waits for no grace"


@pytest.mark.parametrize(
    "body",
    [
        "look(status(), status())",
        "while True: item(status())",
        """look(status(more=True, files={"plan.json": [[2, time.time_ns()], "{}"]}))""",
    ],
)
def test_answers_without_end_do_not_delay_a_listing(victim, monkeypatch, body):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", 1.0)
    victim.deadline(UNHURRIED)
    victim.liar.says(answering("look", body))
    done = victim.type("ls")
    assert (done.code, done.err) == (0, "") and "running" in done.out and OTHER in done.out


METRICS = {
    "metrics elsewhere": "{'../../../../outside/precious': [0, 'owned']}",
    "metrics that were not asked for": "{'status.json': [0, 'owned']}",
    "a terabyte": "{'metrics.jsonl': [2**40, 'x']}",
    "no metrics": "None",
    "metrics of a wrong type": "{'metrics.jsonl': 5}",
    "a start of a wrong type": "{'metrics.jsonl': ['0', 'x']}",
    "more than a piece": "{'metrics.jsonl': [0, 'x' * 3000000]}",
}


def test_metrics_are_only_appended_where_they_continue(victim):
    victim.deadline(UNHURRIED)
    runs = victim.runs(answering("look", f"look(status(metrics={value}))") for value in METRICS.values())
    seen = remote_status.states_of_remote(runs, follow=True)
    host.close_all()
    for name, row in zip(METRICS, seen, strict=True):
        assert row.state.name == "unreachable" and REFUSED in row.state.reason, name
    assert victim.state() == victim.before
    assert not list(victim.run.parent.rglob("metrics.jsonl"))


@pytest.mark.parametrize("name", ["plan.json", "attempts", "attempts/1", "attempts/1/stopped.json", "metrics.jsonl"])
def test_a_link_in_the_folder_of_a_run_is_not_followed(victim, name):
    path, precious = victim.run / name, victim.outside / "precious"
    (victim.outside / "stopped.json").write_text("precious")
    (victim.outside / "1").mkdir()
    victim.before = victim.state()
    if path.is_dir():
        path.rmdir()
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(precious if "." in name else victim.outside)
    files = {"plan.json": [[1, 2], "{}"], "attempts/1/stopped.json": [[1, 2], "{}"]}
    victim.liar.says(answering("look", f"look(status(files={files}, metrics={{'metrics.jsonl': [0, 'owned']}}))"))
    victim.type("ls")
    victim.type("ls", RUN)


def test_ssh_config_may_be_relative_to_home_or_to_the_current_folder(liar, monkeypatch):
    """A run is asked about from any folder, so the whole path is kept."""
    monkeypatch.setenv("HOME", str(liar.folder))
    monkeypatch.chdir(liar.folder.parent)
    for typed in ("~/ssh_config", f"{liar.folder.name}/ssh_config"):
        assert addresses.of(build(SshCluster, {"host": "liar", "ssh_config": typed})).config == str(liar.config)


def test_missing_fabric_hides_no_other_run(victim, monkeypatch):
    remote_record.write(victim.run, pointer_to(Address(destination="liar")))
    monkeypatch.setitem(sys.modules, "fabric", None)
    for name in ("launcher.ssh.fabric_transport", "launcher.ssh.strict_connection"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(name, raising=False)
    done = victim.type_only("ls")
    assert done.code == 0 and OTHER in done.out and "liar: SSH needs fabric" in done.out


def test_a_lying_host_does_not_delay_another_host(victim, tmp_path):
    """An honest one, with the launcher's own agent, and one that has not answered when the other's answer is kept."""
    victim.deadline(UNHURRIED)
    good, there = "20260102-030408-green-fox", tmp_path / "there"
    kept = victim.run.parent / good / "known.json"
    victim.liar.says(answering("look", f"while not os.path.exists({str(kept)!r}): beat(); time.sleep(0.1)\nsys.exit()"))
    there.mkdir()
    run_folders.finished(there, good)
    remote_record.create(good, pointer_to(victim.liar.address("honest", python=sys.executable), str(there)))
    done = victim.type_only("ls")
    assert done.code == 0
    states = {line.split()[0]: line.split()[1:3] for line in done.out.splitlines() if line.startswith("2026")}
    assert states[good] == ["done", "honest"] and states[RUN][0] == "unreachable" and states[OTHER][0] == "done"


STARTS = {
    "too old": "raw(b'\\nlauncher-agent old 2.7.1 /usr/bin/\\x1b]0;owned\\x07python\\n'); sys.exit()",
    "an error": "raw(b'\\nlauncher-agent error \\x1b[2Jno \\xe2\\x80\\xaespace\\n'); sys.exit()",
    "a complaint": "sys.stderr.write('\\x1b]0;owned\\x07ssh-keygen -R x\\n'); sys.exit(255)",
    "noise without end": "while True: raw(b'x' * 65536)",
    "a byte a second": "while True: raw(b'x'); time.sleep(0.2)",
    "need for ever": "while True: raw(b'\\nlauncher-agent need\\n'); time.sleep(0.2)",
}


@pytest.mark.parametrize(
    "transport", ["fabric", "openssh"], ids=["exit code 255 is the host's", "exit code 255 is ssh's own"]
)
def test_a_host_that_starts_with_a_protocol_error_costs_one_line(victim, transport):
    victim.liar.as_process = True
    victim.deadline(SECONDS, opening=SECONDS)
    runs = victim.runs(STARTS.values(), transport=transport)
    done = victim.type_only("ls")
    assert done.code == 0 and OTHER in done.out
    assert all(f"{run.id}  unreachable" in done.out for run in runs)
    for number, name in enumerate(STARTS):
        begins = (f"liar-{number} ", f"liar-{number}: ")
        lines = [line for line in done.out.splitlines() if line.startswith(begins) or f" {begins[1]}" in line]
        assert len(lines) == 1, name


COMPLAINTS = (
    "while True: os.write(2, b'x' * 65536); beat(); time.sleep(0.01)",
    "os.write(2, b'\\x1b]0;owned\\x07\\x9b31m\\xc2\\x9b2J a\\xe2\\x80\\xaeb\\r\\n'); sys.exit(1)",
)


def test_an_error_text_of_a_host_is_bounded_and_cleaned(victim):
    victim.liar.as_process = True
    runs = victim.runs("".join(answering(name, body) for name in ("look", "log")) for body in COMPLAINTS)
    done = victim.type_only("ls")
    assert OTHER in done.out and all(f"{run.id}  unreachable" in done.out for run in runs)
    victim.refusals([functools.partial(victim.read_log, run) for run in runs])


def test_a_host_that_answers_slowly_run_by_run_does_not_delay_a_listing(victim, monkeypatch):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", SECONDS)
    for number in range(10):
        remote_record.create(f"20260103-03040{number}-brave-otter", pointer_to(victim.liar.address()))
    late = "for run in request['with']['runs']:\n    time.sleep(1.2)\n    item(status())\nanswer()"
    victim.liar.says(answering("look", late))
    done = victim.type_only("ls")
    assert OTHER in done.out and done.out.count("unreachable") >= 8


@pytest.mark.parametrize("umask", ["000", "002", "077"])
def test_the_agent_is_stored_where_only_its_user_may_write(tmp_path, umask):
    """The zip is code that runs."""
    command = bootstrap.command(hashlib.sha256(b"zip").hexdigest(), 3, sys.executable)
    subprocess.run(
        ["sh", "-c", f"umask {umask}; {command}"],
        input=b"zip", capture_output=True, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert [path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")] == [0, 0, 0]
