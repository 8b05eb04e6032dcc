"""Hosts that lie about their runs or themselves: a real sshd with a hostile program behind it. Nothing that it sends is
written outside its run's folder, run, or shown raw; it costs one line, and all other runs are shown."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import subprocess
import sys
import time
import types

import pytest

from launcher.commands import shell
from launcher.config.schema import SshCluster
from launcher.doctor import examination
from launcher.errors import Unavailable, UsageError
from launcher.executors.ssh import submit_client
from launcher.runs import address as addresses
from launcher.runs import remote_record, run_roots
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from launcher.runs.selection import Selection
from launcher.runs.store import Run
from launcher.ssh import actions, bootstrap, host, probe_client, remote_status
from launcher.ssh.failures import BadAnswer
from recipes.typed import build
from tests.launcher import run_folders
from tests.launcher.ssh.hostile import answering, needs_sshd
from tests.launcher.ssh.victim import BAD, LATE, NAMES, OTHER, REFUSED, RUN, SECONDS, UNHURRIED

pytestmark = needs_sshd


def test_an_honest_answer_is_accepted(victim):
    """So that the attacks below fail for what is wrong in them."""
    victim.deadline(UNHURRIED)
    victim.liar.over_sshd = True
    victim.liar.says(answering("look", """look(told(files={"plan.json": [[2, 5], "{}"]}, step=7))"""))
    said = victim.type("ls")
    assert (said.code, said.err) == (0, "")
    assert RUN in said.out and "running" in said.out and "liar" in said.out and OTHER in said.out
    assert (victim.run / "plan.json").read_text() == "{}"
    victim.liar.says(answering("look", "look(None)"))
    assert BAD in victim.type_only("ls").out


TOLD = {
    "state": "null 5 'done' [] {} ['done'] ['done']*20 ['exploded','',1,None,None,None] [['done'],'',1,None,None,None] "
    "['done',7,1,None,None,None] ['done','x'*5000,1,None,None,None] ['done','','1',None,None,None] "
    "['done','',-1,None,None,None] ['done','',10**30,None,None,None] ['done','',True,None,None,None] "
    "['done','',1,'0',None,None] ['done','',1,10**400,None,None] ['done','',1,None,5,None] ['done','',1,None,None,{}] "
    "['done','',1,None,'9'*5000,None]",
    "begun": "null 'yes' 1",
    "attempts": "null {} 5 [0] ['1'] [1.5] [True] [10**9] [-1] list(range(200000)) [[1]]",
    "files": "null [] 5 {'plan.json':None} {'plan.json':'x'} {'plan.json':[[1,2],5]} {'plan.json':[[1],'x']} "
    "{'plan.json':[['1','2'],'x']} {'plan.json':[[1,2**70],'x']} {'plan.json':[[-1,2],'x']} {'plan.json':[[1,-2],'x']} "
    "{'plan.json':[None,'x']} {'plan.json':[[1,2],'\\ud800']} {'plan.json':[[1,2],'x'*3000000]} "
    "{'plan.json':[[1,2],'x','y']}",
    "step": "'7' -1 7.5 2**60 [7] True",
    "log": "5 'x' ['p'] ['p',5] [5,[]] ['p',['x']*5000] ['p',[5]] ['p'*9999,[]]",
    "more": "null 'yes'",
}
"""Values of what is told of a run that can't be, as Python without blanks."""


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
"""Whole answers."""

ENDED = ("sys.exit()", "raw(b'J\\0\\0\\1\\0{'); sys.exit()")
SLOW = (
    "while True: beat(); time.sleep(0.1)",
    "while True: beat()",
    "for each in b'J\\0\\0\\1\\0' + b' ' * 256: raw(bytes([each])); time.sleep(0.2)",
    "time.sleep(60)",
)
"""What is waited for until the deadline."""


def lies() -> list[str]:
    """All of them are refused at once."""
    found = [f"look(told(files={{{name!r}: [[1, 2], 'owned']}}))" for name in NAMES]
    for key, values in TOLD.items():
        found += [f"look(told({key}={'None' if value == 'null' else value}))" for value in values.split()]
    found += [f"look({value})" for value in ("None", "5", "[]", "'x'", "{}", "[told()]")]
    return [*found, *FRAMES]


def check_lies(victim, bodies: list[str], expected: list[str]) -> dict[str, str]:
    """Hosts that all answer wrong: a line for each, and all other runs are shown. Returns the states by run."""
    runs = victim.runs(
        answering("look", body.replace("{outside}", str(victim.outside)).replace("{other}", OTHER)) for body in bodies
    )
    said = victim.type("ls", "--all")
    assert said.code == 0
    states = {line.split()[0]: line.split()[1] for line in said.out.splitlines() if line.startswith("2026")}
    assert states[OTHER] == "done" and RUN in states
    assert [states[run.id] for run in runs] == ["unreachable"] * len(runs)
    shown = [line for line in said.out.splitlines() if line.startswith("liar-")]
    for number, (body, run, text) in enumerate(zip(bodies, runs, expected, strict=True)):
        (line,) = [line for line in shown if line.startswith(f"liar-{number} ") or line.startswith(f"liar-{number}: ")]
        assert text in line, body
        assert {path.name for path in run.folder.rglob("*")} == {"attempts", "elsewhere.json"}, body
    return states


def test_a_lie_costs_one_line_and_all_other_runs_are_shown(victim):
    victim.deadline(UNHURRIED)
    expected = {**dict.fromkeys(lies(), REFUSED), **dict.fromkeys(ENDED, "was lost")}
    assert check_lies(victim, list(expected), list(expected.values()))[RUN] == "running"


def test_an_answer_that_does_not_come_costs_one_line_and_all_other_runs_are_shown(victim):
    check_lies(victim, list(SLOW), [LATE] * len(SLOW))


@pytest.mark.parametrize("body", ["look(told(), told())", "while True: item(told())"])
def test_extra_answers_do_not_delay_a_listing(victim, body):
    victim.deadline(UNHURRIED)
    victim.liar.says(answering("look", body))
    said = victim.type("ls")
    assert (said.code, said.err) == (0, "") and "running" in said.out and OTHER in said.out


FOLLOWED = {
    "metrics elsewhere": "metrics={'../../../../outside/precious': [0, 'owned']}",
    "metrics that were not asked for": "metrics={'status.json': [0, 'owned']}",
    "a terabyte": "metrics={'metrics.jsonl': [2**40, 'x']}",
    "no metrics": "metrics=None",
    "metrics of a wrong type": "metrics={'metrics.jsonl': 5}",
    "a start of a wrong type": "metrics={'metrics.jsonl': ['0', 'x']}",
    "more than a piece": "metrics={'metrics.jsonl': [0, 'x' * 3000000]}",
}


def test_metrics_are_only_appended_where_they_continue(victim):
    victim.deadline(UNHURRIED)
    runs = victim.runs(answering("look", f"look(told({told}))") for told in FOLLOWED.values())
    seen = remote_status.look(runs, follow=True)
    host.close_all()
    for name, each in zip(FOLLOWED, seen, strict=True):
        assert each.state.name == "unreachable" and REFUSED in each.state.reason, name
    assert victim.state() == victim.before
    assert not list(victim.run.parent.rglob("metrics.jsonl"))


def test_a_host_that_always_has_more_is_not_asked_forever(victim, monkeypatch):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", 1.0)
    victim.liar.says(answering("look", """look(told(more=True, files={"plan.json": [[2, time.time_ns()], "{}"]}))"""))
    said = victim.type("ls")
    assert "running" in said.out and OTHER in said.out


LINKED = ["plan.json", "attempts", "attempts/1", "attempts/1/stopped.json", "metrics.jsonl"]


@pytest.mark.parametrize("name", LINKED)
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
    victim.liar.says(answering("look", f"look(told(files={files}, metrics={{'metrics.jsonl': [0, 'owned']}}))"))
    victim.type("ls")
    victim.type("ls", RUN)


ACTED = {
    "cancel": "None 5 [] {} [5] ['',''] [None] ['x'*9999]",
    "resume": "None 5 {} 'x' ['a']*999",
}


def test_a_false_answer_to_an_action_is_one_line(victim):
    victim.deadline(UNHURRIED)
    lies = [(name, value) for name, values in ACTED.items() for value in values.split()]
    runs = victim.runs(answering(name, f"answer({value})") for name, value in lies)
    of = {name: [run for run, lie in zip(runs, lies, strict=True) if lie[0] == name] for name in ACTED}
    ended = victim.type("cancel", "--now", *(run.id for run in of["cancel"]))
    assert ended.code == 1 and ended.out.count(REFUSED) == len(of["cancel"])
    calls = [functools.partial(actions.resume, Selection(None, (run,)), {}, {}) for run in of["resume"]]
    assert all(REFUSED in text for text in victim.refusals(calls))


def test_a_command_on_a_run_of_a_lying_host_ends_with_its_exit_code(victim):
    victim.liar.says(
        "".join(answering(name, "answer(5)") for name in ACTED) + answering("remove", "send({'error': 5})")
    )
    for words, code in ((["cancel", "--now", RUN], 1), (["rm", RUN], 3), (["resume", RUN], 3)):
        said = victim.type_only(*words)
        assert said.code == code and BAD in said.out + said.err


@pytest.mark.parametrize("answer", ["5", "[1,2]", "[1,2,3]", "[-1,2,True]", "[1,'x',True]"])
def test_a_false_answer_about_a_replay_is_refused_and_its_record_kept(victim, answer):
    """The replay may have been started all the same."""
    victim.liar.says(answering("verify", f"answer({answer})"))
    said = victim.type_only("verify", RUN)
    assert said.code == 3 and "may have been started or not" in said.err


def test_a_defect_of_the_agent_is_reported_in_one_line(victim, tmp_path):
    """With the launcher's own far side: an argument that it can't know."""
    address = victim.liar.address(python=sys.executable)
    with pytest.raises(
        Unavailable, match=r"liar: the launcher's agent there failed: TypeError: .*lines.*\(agent.py:\d+\)"
    ):
        host.connect(address).ask("hello", host.hello, lines=5)
    assert host.connect(address).ask("hello", host.hello)["system"]


def test_ssh_config_may_be_relative_to_home_or_to_the_current_folder(victim, liar, tmp_path, monkeypatch):
    """A run is asked about from any folder, so the whole path is kept."""
    monkeypatch.setenv("HOME", str(liar.folder))
    monkeypatch.chdir(liar.folder.parent)
    for typed, transport in (("~/ssh_config", "fabric"), (f"{liar.folder.name}/ssh_config", "openssh")):
        address = addresses.of(build(SshCluster, {"host": "liar", "ssh_config": typed, "transport": transport}))
        assert address.config == str(liar.config)
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(tmp_path)
            asked = dataclasses.replace(address, python=sys.executable)
            assert host.connect(asked).ask("hello", host.hello)["system"]


def test_missing_fabric_hides_no_other_run(victim, monkeypatch):
    victim.liar.over_sshd = True
    monkeypatch.setitem(sys.modules, "fabric", None)
    for name in ("launcher.ssh.fabric_transport", "launcher.ssh.strict_connection"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(name, raising=False)
    said = victim.type_only("ls")
    assert said.code == 0 and OTHER in said.out and "liar: SSH needs fabric" in said.out


def test_a_lying_host_does_not_delay_another_host(victim, tmp_path):
    """An honest one, with the launcher's own far side, beside one that has not answered when its answer is kept."""
    victim.deadline(UNHURRIED)
    good, there = "20260102-030408-green-fox", tmp_path / "there"
    kept = victim.run.parent / good / "known.json"
    victim.liar.says(answering("look", f"while not os.path.exists({str(kept)!r}): beat(); time.sleep(0.1)\nsys.exit()"))
    there.mkdir()
    run_folders.finished(there, good)
    address = victim.liar.address("honest", python=sys.executable)
    remote_record.create(good, Pointer(address=address, root=str(there), token="t", created=time.time()))
    said = victim.type_only("ls")
    assert said.code == 0
    states = {line.split()[0]: line.split()[1:3] for line in said.out.splitlines() if line.startswith("2026")}
    assert states[good] == ["done", "honest"] and states[RUN][0] == "unreachable" and states[OTHER][0] == "done"


HOSTS = ("None", "5", "[]", "{}", "{'host': 5}", "{'x': 1}", "{'host': '\\x1b[2J'}")


def test_false_facts_of_a_host_are_one_line(victim):
    victim.deadline(UNHURRIED)
    admitted = {"probe": probe_client._admitted, "hello": host.hello, "examine": examination._examined}
    arguments = {"probe": {"asked": {}}, "hello": {}, "examine": {"run_root": "/runs"}}
    asked = victim.liar.liars("".join(answering(name, f"answer({value})") for name in admitted) for value in HOSTS)
    for name, admit in admitted.items():
        calls = [functools.partial(host.connect(each).ask, name, admit, **arguments[name]) for each in asked]
        assert all(REFUSED in text for text in victim.refusals(calls))


@pytest.mark.parametrize(("verb", "request_"), [("plan", "probe"), ("doctor", "hello"), ("doctor", "examine")])
def test_a_command_shows_false_facts_of_a_host_in_one_line(victim, verb, request_):
    victim.deadline(UNHURRIED)
    victim.liar.says(
        answering(request_, "answer({'host': 5})")
        + answering("hello", "answer({'host': 'a', 'system': 'b', 'python': 'c'})") * (request_ != "hello")
    )
    where = [f"cluster.ssh_config={victim.liar.config}", f"cluster.python={victim.liar.liar}", "run_root=/runs"]
    said = victim.type_only(verb, "cluster=ssh", "cluster.host=liar", *where)
    assert said.code == 3 and BAD in said.out + said.err


def test_whether_a_host_has_the_code_is_yes_or_no(victim):
    plan = types.SimpleNamespace(code_dir="/runs/.code/0")
    for address in victim.liar.liars(answering("has_code", f"answer({value})") for value in ("None", "5", "['yes']")):
        with pytest.raises(BadAnswer, match=REFUSED):
            submit_client.send_code(plan, {}, address)


def test_a_shell_of_a_local_run_ignores_a_pointer_in_its_folder(victim):
    """A pointer names a configuration, and that may name a command."""
    folder = victim.folder / "here" / OTHER
    remote_record.write(folder, Pointer(address=victim.liar.address(), root="/r", token="t", created=0.0))
    assert shell._address(Run(str(folder.parent), OTHER)) is None
    assert shell._address(Run(str(victim.run.parent), RUN)) == victim.liar.address()
    (victim.run / remote_record.POINTER).write_text("{")
    with pytest.raises(UsageError, match="can't be read"):
        shell._address(Run(str(victim.run.parent), RUN))


def test_remote_records_are_recognized_by_any_path(victim, tmp_path):
    """Else what their hosts say of queues and processes would be taken for this machine's."""
    (tmp_path / "alias").symlink_to(victim.run.parent)
    assert run_roots.is_remote(str(tmp_path / "alias")) and not run_roots.is_remote(str(victim.folder / "here"))


STARTS = {
    "too old": "raw(b'\\nlauncher-agent old 2.7.1 /usr/bin/\\x1b]0;owned\\x07python\\n'); sys.exit()",
    "an error": "raw(b'\\nlauncher-agent error \\x1b[2Jno \\xe2\\x80\\xaespace\\n'); sys.exit()",
    "a complaint": "sys.stderr.write('\\x1b]0;owned\\x07ssh-keygen -R x\\n'); sys.exit(255)",
    "noise without end": "while True: raw(b'x' * 65536)",
    "a byte a second": "while True: raw(b'x'); time.sleep(0.2)",
    "need for ever": "while True: raw(b'\\nlauncher-agent need\\n'); time.sleep(0.2)",
}


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_host_that_starts_with_a_protocol_error_costs_one_line(victim, transport):
    victim.liar.over_sshd = True
    victim.deadline(SECONDS, opening=SECONDS)
    runs = victim.runs(STARTS.values(), transport=transport)
    said = victim.type_only("ls")
    assert said.code == 0 and OTHER in said.out
    assert all(f"{run.id}  unreachable" in said.out for run in runs)
    for number, name in enumerate(STARTS):
        begins = (f"liar-{number} ", f"liar-{number}: ")
        lines = [line for line in said.out.splitlines() if line.startswith(begins) or f" {begins[1]}" in line]
        assert len(lines) == 1, name


def test_cancel_now_waits_for_no_grace_of_a_host_that_does_not_answer(victim):
    victim.liar.says(answering("cancel", "while True: beat(); time.sleep(0.1)"))
    said = victim.type_only("cancel", "--now", RUN)
    assert said.code == 1 and LATE in said.out


COMPLAINTS = {
    "without end": "while True: os.write(2, b'x' * 65536); beat(); time.sleep(0.01)",
    "for a terminal": "os.write(2, b'\\x1b]0;owned\\x07\\x9b31m\\xc2\\x9b2J a\\xe2\\x80\\xaeb\\r\\n'); sys.exit(1)",
}


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_an_error_text_of_a_host_is_bounded_and_cleaned(victim, transport):
    victim.liar.over_sshd = True
    attacks = ["".join(answering(name, body) for name in ("look", "log")) for body in COMPLAINTS.values()]
    runs = victim.runs(attacks, transport=transport)
    said = victim.type_only("ls")
    assert OTHER in said.out and all(f"{run.id}  unreachable" in said.out for run in runs)
    victim.refusals([functools.partial(victim.read_log, run) for run in runs])


def test_a_host_that_answers_slowly_run_by_run_does_not_delay_a_listing(victim, monkeypatch):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", SECONDS)
    pointer = Pointer(address=victim.liar.address(), root="/runs", token="t", created=time.time())
    for number in range(10):
        remote_record.create(f"20260103-03040{number}-brave-otter", pointer)
    late = "for each in request['with']['runs']:\n    time.sleep(1.2)\n    item(told())\nanswer()"
    victim.liar.says(answering("look", late))
    said = victim.type_only("ls")
    assert OTHER in said.out and said.out.count("unreachable") >= 8


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user, which only root can make")
def test_a_pointer_that_another_user_wrote_is_not_followed(victim):
    """It names an SSH configuration, and that may name a ProxyCommand."""
    owned = victim.outside / "owned"
    config = victim.outside / "config"
    config.write_text(f"Host *\n  ProxyCommand touch {owned}\n")
    for transport in ("fabric", "openssh"):
        address = Address(destination="liar", transport=transport, config=str(config))
        remote_record.write(victim.run, Pointer(address=address, root="/r", token="t", created=time.time()))
        assert victim.type_only("ls").code == 0 and owned.exists()
        owned.unlink()
        os.chown(victim.run / remote_record.POINTER, 61001, 61001)
        said = victim.type_only("ls")
        assert said.code == 0 and OTHER in said.out and "can't be read" in said.out and not owned.exists()
        (victim.run / remote_record.POINTER).unlink()


@pytest.mark.parametrize("umask", ["000", "002", "077"])
def test_the_agent_is_stored_where_only_its_user_may_write(tmp_path, umask):
    """The zip is code that runs."""
    command = bootstrap.command(hashlib.sha256(b"zip").hexdigest(), 3, sys.executable)
    subprocess.run(
        ["sh", "-c", f"umask {umask}; {command}"],
        input=b"zip", capture_output=True, env={"HOME": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    found = [each.stat().st_mode & 0o077 for each in tmp_path.rglob("*")]
    assert found == [0, 0, 0]
