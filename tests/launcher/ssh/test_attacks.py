"""Hosts that lie: a real sshd with a hostile program behind it. Nothing that it says is written outside its run's
folder, run, or shown raw; it costs one line, and all other runs are shown."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.__main__ import main
from launcher.commands import shell
from launcher.config.schema import SshCluster
from launcher.errors import Unavailable, UsageError
from launcher.executors.ssh import submit_client
from launcher.runs import address as addresses
from launcher.runs import processes, remote_record, run_roots
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from launcher.runs.store import Run
from launcher.ssh import bootstrap, host, remote_status, session
from launcher.ssh.failures import BadAnswer
from launcher.ssh.methods import REQUESTS
from recipes.typed import build
from tests.launcher import run_folders
from tests.launcher.ssh.hostile import SSHD, Hostile
from tests.launcher.ssh.ways import keys

pytestmark = pytest.mark.skipif(not os.access(SSHD, os.X_OK), reason="needs sshd (Debian: openssh-server)")

RUN, OTHER = "20260102-030405-brave-otter", "20260102-030406-calm-heron"
SECONDS = 2.0
"""In which each answer has to be here, in these tests."""
BAD = "liar sent data that the protocol does not allow: "
LATE = f"liar has not answered in {SECONDS:.0f} s, though its connection lives"


class Said(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


class Victim:
    """Who looks: a run on the hostile host, one that ended here, and files that are nobody's business."""

    def __init__(self, folder: Path, liar: Hostile, capfd) -> None:
        self.folder, self.liar, self.capfd = folder, liar, capfd
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_text("precious")
        roots = folder / "here"
        roots.mkdir()
        run_folders.finished(roots, OTHER)
        run_roots.remember(roots)
        self.run = remote_record.create(
            RUN, Pointer(address=liar.address(), root="/runs", token="t", created=time.time())
        )
        self.before = self.state()

    def state(self) -> dict[str, bytes]:
        """All files that no answer may change."""
        found = {}
        for path in self.folder.rglob("*"):
            inside = path.is_relative_to(self.run) and path.name != remote_record.POINTER
            if path.is_file() and not inside and ".unfinished" not in path.parts:
                found[str(path)] = path.read_bytes()
        return found

    def type(self, *words: str) -> Said:
        said = self.type_only(*words)
        assert self.state() == self.before
        return said

    def type_only(self, *words: str) -> Said:
        """The same where files may change."""
        self.capfd.readouterr()
        began = time.monotonic()
        code = main(list(words))
        taken = time.monotonic() - began
        host.close_all()
        said = Said(code, *self.capfd.readouterr(), taken)
        assert "Traceback" not in said.err
        shown = (said.out + said.err).replace("\n", "")
        assert all(each.isprintable() for each in shown), ascii(shown)
        return said


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    found = Hostile(tmp_path_factory.mktemp("hostile"))
    yield found
    found.close()


@pytest.fixture
def victim(tmp_path, liar, capfd, monkeypatch):
    for name, each in REQUESTS.items():
        monkeypatch.setitem(REQUESTS, name, each._replace(seconds=SECONDS))
    monkeypatch.setattr(session, "OPENING", SECONDS)
    monkeypatch.setattr(host, "SILENCE", 1.5 * SECONDS)
    liar.says("")
    yield Victim(tmp_path, liar, capfd)
    host.close_all()


def answering(request: str, body: str) -> str:
    return f"def _(request):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\nattack[{request!r}] = _\n"


def test_an_honest_answer_of_the_same_program_is_taken(victim):
    """So that the attacks below fail for what is wrong in them."""
    victim.liar.says(answering("look", """look(told(files={"plan.json": [[2, 5], "{}"]}, step=7))"""))
    said = victim.type("ls")
    assert (said.code, said.err) == (0, "")
    assert RUN in said.out and "running" in said.out and "liar" in said.out and OTHER in said.out
    assert (victim.run / "plan.json").read_text() == "{}"


NAMES = (
    "../../../../outside/precious",
    "../{other}/plan.json",
    "{outside}/precious",
    "elsewhere.json",
    "ELSEWHERE.json",
    "elſewhere.json",
    "./elsewhere.json",
    "attempts/../elsewhere.json",
    "known.json",
    ".elsewhere.json",
    "plan.json/../elsewhere.json",
    "plan.json\\0",
    "config",
    "run.sh",
    "checkpoints/a",
    "attempts/2/stopped.json",
    "attempts/1/stdout.log",
    "arms/00/plan.json",
    "",
    ".",
    "x" * 5000,
)
"""Of files that were not asked for."""

INSIDE = ("config", "run.sh", "checkpoints/a", "attempts/2/stopped.json", "attempts/1/stdout.log", "arms/00/plan.json")
"""Of these, those that a fetch may bring."""

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


def lies() -> list:
    rows = [
        pytest.param(f"look(told(files={{{name!r}: [[1, 2], 'owned']}}))", BAD, id=f"file-{name[:30]}")
        for name in NAMES
    ]
    for key, values in TOLD.items():
        for value in values.split():
            value = "None" if value == "null" else value
            rows.append(pytest.param(f"look(told({key}={value}))", BAD, id=f"{key}-{value[:40]}"))
    for value in ("None", "5", "[]", "'x'", "{}", "[told()]"):
        rows.append(pytest.param(f"look({value})", BAD, id=f"told-{value}"))
    return rows


FRAMES = {
    "none": ("answer([])", BAD),
    "null": ("answer(None)", BAD),
    "no JSON": ("frame(b'J', b'{]')", BAD),
    "no UTF-8": ("frame(b'J', b'\\xff\\xfe\\xfd')", BAD),
    "a list": ("frame(b'J', b'[1]')", BAD),
    "a number": ("frame(b'J', b'1')", BAD),
    "deep": ("frame(b'J', b'[' * 500000)", BAD),
    "deep and closed": ("frame(b'J', b'{\"item\":' * 99999 + b'1' + b'}' * 99999)", BAD),
    "NaN": ("send('{\"item\": NaN}')", BAD),
    "endless number": ("send('{\"item\": ' + '9' * 100000 + '}')", BAD),
    "another kind": ("raw(b'Z\\0\\0\\0\\0')", BAD),
    "text": ("raw(b'Last login: yesterday\\n')", BAD),
    "four gigabytes": ("raw(b'J\\xff\\xff\\xff\\xff')", BAD),
    "a long heartbeat": ("raw(b'K\\0\\0\\1\\0' + b'x' * 256)", BAD),
    "bytes": ("frame(b'B', b'x')", BAD),
    "empty": ("frame(b'B', b'')", BAD),
    "an empty object": ("send({})", BAD),
    "an error of no text": ("send({'error': 5, 'code': 2})", BAD),
    "an error without a code": ("send({'error': 'x'})", BAD),
    "an error of a wrong code": ("send({'error': 'x', 'code': '2'})", BAD),
    "an endless error": ("send({'error': 'x' * 100000, 'code': 2})", BAD),
    "notes without end": ("while True: send({'say': 'x' * 1000})", BAD),
    "a note of no text": ("send({'say': 5})", BAD),
    "bytes without end": ("while True: frame(b'B', b'x' * 65536)", BAD),
    "a heartbeat without an answer": ("while True: beat(); time.sleep(0.1)", LATE),
    "heartbeats without end": ("while True: beat()", LATE),
    "a byte a second": ("for each in b'J\\0\\0\\1\\0' + b' ' * 256: raw(bytes([each])); time.sleep(0.2)", LATE),
    "an end": ("sys.exit()", "the connection to liar was lost"),
    "an end within a frame": ("raw(b'J\\0\\0\\1\\0{'); sys.exit()", "the connection to liar was lost"),
    "silence": ("time.sleep(60)", LATE),
}


@pytest.mark.parametrize(
    ("body", "expected"), [*lies(), *(pytest.param(*row, id=name) for name, row in FRAMES.items())]
)
def test_a_lie_costs_one_line_and_all_other_runs_are_shown(victim, body, expected):
    body = body.replace("{outside}", str(victim.outside)).replace("{other}", OTHER)
    victim.liar.says(answering("look", body))
    said = victim.type("ls")
    assert said.code == 0
    assert RUN in said.out and "unreachable" in said.out
    assert OTHER in said.out and "done" in said.out
    (line,) = [each for each in said.out.splitlines() if each.startswith("liar: ")]
    assert expected in line
    assert said.seconds < SECONDS + 8
    left = {each.name for each in victim.run.rglob("*")}
    assert left == {"attempts", "elsewhere.json"}


@pytest.mark.parametrize("body", ["look(told(), told())", "while True: item(told())"])
def test_what_comes_behind_an_answer_is_not_waited_for(victim, body):
    victim.liar.says(answering("look", body))
    said = victim.type("ls")
    assert (said.code, said.err) == (0, "") and "running" in said.out and OTHER in said.out
    assert said.seconds < SECONDS + 8


FOLLOWED = {
    "metrics elsewhere": "metrics={'../../../../outside/precious': [0, 'owned']}",
    "metrics that were not asked for": "metrics={'status.json': [0, 'owned']}",
    "a terabyte": "metrics={'metrics.jsonl': [2**40, 'x']}",
    "no metrics": "metrics=None",
    "metrics of a wrong type": "metrics={'metrics.jsonl': 5}",
    "a start of a wrong type": "metrics={'metrics.jsonl': ['0', 'x']}",
    "more than a piece": "metrics={'metrics.jsonl': [0, 'x' * 3000000]}",
}


@pytest.mark.parametrize("told", FOLLOWED.values(), ids=FOLLOWED)
def test_metrics_are_taken_where_they_go_on_and_nowhere_else(victim, told):
    victim.liar.says(answering("look", f"look(told({told}))"))
    said = victim.type("ls", RUN)
    assert said.code == 0 and BAD in said.out
    assert not (victim.run / "metrics.jsonl").exists()


def test_a_host_that_always_has_more_to_tell_is_not_asked_for_ever(victim, monkeypatch):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", 1.0)
    victim.liar.says(answering("look", """look(told(more=True, files={"plan.json": [[2, time.time_ns()], "{}"]}))"""))
    said = victim.type("ls")
    assert "running" in said.out and OTHER in said.out and said.seconds < 10


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


HEAD = "{'place': {'attempt': 1, 'stdout': 3, 'stderr': 0}, 'sizes': [3, 0], "
HEAD += "'more': False, 'ended': True, 'state': None, **changes}"
LOGS = {
    "null": "item(None); answer()",
    "nothing": "answer()",
    "bytes first": "frame(b'B', b'x'); answer()",
    "more than announced": "item(head()); frame(b'B', b'12345'); answer()",
    "less than announced": "item(head()); frame(b'B', b'1'); answer()",
    "without end": "item(head())\nwhile True: frame(b'B', b'x' * 65536)",
    "an object within": "item(head()); item({}); answer()",
    "a gigabyte": "item(head(sizes=[2**30, 0])); answer()",
    "sizes": "item(head(sizes=[-1, 4])); answer()",
    "three sizes": "item(head(sizes=[1, 1, 1])); answer()",
    "a place": "item(head(place=7)); answer()",
    "a place of text": "item(head(place={'attempt': '1', 'stdout': 0, 'stderr': 0})); answer()",
    "a state": "item(head(state=['done'] * 20)); answer()",
    "flags": "item(head(more=7)); answer()",
    "neither an end nor more": "item(head(ended=False, sizes=[0, 0])); answer()",
    "the same for ever": "item(head(ended=False, more=True, sizes=[0, 0])); answer()",
    "backwards": "item(head(ended=False, more=True)); frame(b'B', b'abc'); answer()",
    "a heartbeat": "while True: beat(); time.sleep(0.1)",
    "a byte at a time": "item(head(sizes=[1000, 0]))\nwhile True: frame(b'B', b'x'); time.sleep(0.2)",
}


@pytest.mark.parametrize("body", LOGS.values(), ids=LOGS)
def test_a_lie_about_a_log_is_one_line(victim, body):
    lie = f"def head(**changes): return {HEAD}\n{body}"
    victim.liar.says(answering("log", lie))
    said = victim.type("logs", RUN)
    assert said.code == 3 and (BAD in said.err or LATE in said.err)
    assert said.seconds < SECONDS + 8


CONTENTS = (
    "None", "5", "{}", "['x']", "[['x', 1]]", "[['x', '1', 2]]", "[['x', -1, 2]]", "[['x', 1, 2**70]]", "[[5, 1, 2]]",
    *(f"[[{name!r}, 5, 6]]" for name in NAMES if name not in INSIDE and "\\" not in name),
    "[['attempts/../../x', 5, 6]]", "[['a\\u202eb', 5, 6]]", "[['\\ud800', 5, 6]]", "[['.ssh/config', 5, 6]]",
    "[['x', 5, 6]] * 200001",
)  # fmt: skip


@pytest.mark.parametrize("to", ["", "to"])
@pytest.mark.parametrize("listed", CONTENTS, ids=lambda each: each[:30])
def test_a_fetch_takes_no_name_that_leads_out_or_to_our_own_records(victim, listed, to):
    listed = listed.replace("{outside}", str(victim.outside)).replace("{other}", OTHER)
    served = "for name, *_ in request['with']['wanted']:\n"
    served += "    item({'name': name, 'size': 5, 'mtime': 6, 'offset': 0}); frame(b'B', b'owned')\n"
    served += f"    item({{'name': name, 'sha256': '{hashlib.sha256(b'owned').hexdigest()}', 'short': 0}})\nanswer()"
    victim.liar.says(answering("contents", f"answer({listed})") + answering("files", served))
    said = victim.type("fetch", RUN, *([f"to={victim.run}/{to}"] if to else []))
    assert said.code == 3 and BAD in said.err
    assert said.seconds < SECONDS + 8
    assert not [each for each in victim.run.rglob("*") if each.is_file() and each.read_bytes() == b"owned"]


GIVEN = "{'name': 'x', 'size': 5, 'mtime': 6, 'offset': 0, **changes}"
FILES = {
    "nothing": "answer()",
    "null": "item(None); answer()",
    "another name": "item(head(name='../../../outside/precious')); frame(b'B', b'owned'); item(end()); answer()",
    "a name of ours": "item(head(name='elsewhere.json')); frame(b'B', b'owned'); item(end()); answer()",
    "longer than announced": "item(head())\nwhile True: frame(b'B', b'x' * 65536)",
    "an offset": "item(head(offset=2**40)); frame(b'B', b'owned'); item(end()); answer()",
    "a size": "item(head(size='5')); frame(b'B', b'owned'); item(end()); answer()",
    "a time": "item(head(mtime=2**80)); frame(b'B', b'owned'); item(end()); answer()",
    "no end": "item(head()); frame(b'B', b'owned'); answer()",
    "an end of a wrong type": "item(head()); frame(b'B', b'owned'); item(5); answer()",
    "a second file": "item(head()); frame(b'B', b'owned'); item(end()); item(head()); answer()",
    "a byte at a time": "item(head(size=10**6))\nwhile True: frame(b'B', b'x'); time.sleep(0.2)",
    "gone, of a wrong type": "item(head(gone='yes')); answer()",
}


@pytest.mark.parametrize("body", FILES.values(), ids=FILES)
def test_a_fetch_takes_the_files_that_were_asked_for_and_no_more_of_them_than_was_announced(victim, body):
    digest = hashlib.sha256(b"owned").hexdigest()
    lie = f"def head(**changes): return {GIVEN}\ndef end(): return {{'name': 'x', 'sha256': '{digest}', 'short': 0}}\n"
    victim.liar.says(answering("contents", "answer([['x', 5, 6]])") + answering("files", lie + body))
    said = victim.type("fetch", RUN)
    assert said.code == 3 and (BAD in said.err or LATE in said.err)
    assert said.seconds < SECONDS + 8
    assert sum(each.stat().st_size for each in victim.run.rglob("*") if each.is_file()) < 10_000


def test_a_fetch_follows_no_link_in_the_folder_that_it_brings_to(victim, tmp_path):
    target = tmp_path / "outside" / RUN
    target.mkdir()
    (target / "x").symlink_to(victim.outside / "precious")
    (target / "folder").symlink_to(victim.outside)
    victim.before = victim.state()
    digest = hashlib.sha256(b"owned").hexdigest()
    served = "for name, *_ in request['with']['wanted']:\n"
    served += "    item({'name': name, 'size': 5, 'mtime': 6, 'offset': 0}); frame(b'B', b'owned')\n"
    served += f"    item({{'name': name, 'sha256': '{digest}', 'short': 0}})\nanswer()"
    victim.liar.says(answering("contents", "answer([['folder/precious', 5, 6]])") + answering("files", served))
    assert victim.type_only("fetch", RUN, f"to={victim.outside}").code == 3
    assert (victim.outside / "precious").read_text() == "precious"
    victim.liar.says(answering("contents", "answer([['x', 5, 6]])") + answering("files", served))
    assert victim.type_only("fetch", RUN, f"to={victim.outside}").code == 0
    assert (victim.outside / "precious").read_text() == "precious" and (target / "x").read_text() == "owned"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / RUN).symlink_to(target)
    refused = victim.type_only("fetch", RUN, f"to={tmp_path / 'shared'}")
    assert refused.code == 2 and "a link stands in its place" in refused.err


def test_what_was_fetched_is_a_copy_that_nothing_is_done_to(victim, tmp_path):
    """A host that names a process of mine, a queue with a plugin or a command in a plan gets none of them used."""
    record = {
        "queue": "slurm",
        "slurm_conf": str(tmp_path / "owned.conf"),
        "job": "7",
        "process": processes.to_json(processes.identity(os.getpid())),
    }
    brought = {
        "submission.json": json.dumps(record),
        "status.json": json.dumps({"state": "running", "attempt": 1, "process": record["process"]}),
        "plan.json": json.dumps(
            {"container": {"kind": "docker", "runtime": {"command": ["touch", str(tmp_path / "owned")]}}}
        ),
    }
    listed = [[name, len(text), 6] for name, text in brought.items()]
    served = f"brought = {brought!r}\nimport hashlib\nfor name, *_ in request['with']['wanted']:\n"
    served += "    text = brought[name].encode(); item({'name': name, 'size': len(text), 'mtime': 6, 'offset': 0})\n"
    served += (
        "    frame(b'B', text); item({'name': name, 'sha256': hashlib.sha256(text).hexdigest(), 'short': 0})\nanswer()"
    )
    victim.liar.says(answering("contents", f"answer({listed!r})") + answering("files", served))
    to = tmp_path / "outside" / "got"
    assert victim.type_only("fetch", RUN, f"to={to}").code == 0
    assert (to / RUN / "submission.json").exists()
    listed = victim.type_only("ls", RUN, f"run_root={to}")
    assert listed.code == 0 and "a copy" in listed.out
    assert "a copy" in victim.type_only("cancel", "--now", RUN, f"run_root={to}").out
    assert "a copy" in victim.type_only("resume", RUN, f"run_root={to}").err
    assert not (tmp_path / "owned").exists()


ACTED = {
    "cancel": ("None 5 [] {} [5] ['',''] [None] ['x'*9999]", ["cancel", "--now", RUN], 1),
    "unended": ("None 5 [] [1] [True,False] ['x']", ["rm", RUN], 3),
    "resume": ("None 5 {} 'x' ['a']*999", ["resume", RUN], 3),
}


@pytest.mark.parametrize(
    ("request_", "value"), [(name, value) for name, (values, _, _) in ACTED.items() for value in values.split()]
)
def test_a_lie_about_what_was_done_is_one_line(victim, request_, value):
    _, words, code = ACTED[request_]
    victim.liar.says(answering(request_, f"answer({value})") + answering("remove", "send({'error': 5})"))
    said = victim.type_only(*words)
    assert said.code == code and (BAD in said.out + said.err)


HOSTILE_TEXT = "\\x1b]0;owned\\x07a\\x1b[2Jb\\x9b31mc\\u202ed\\u2066e\\x00f\\rg\\x7fh\\x85i\\ud800j"


@pytest.mark.parametrize(
    "body",
    [
        f"look(told(state=['running', '{HOSTILE_TEXT}', 1, None, '{HOSTILE_TEXT}', None]))",
        f"look(told(state=['failed', '{HOSTILE_TEXT}', 1, 1, None, None], log=['{HOSTILE_TEXT}', ['{HOSTILE_TEXT}']]))",
        f"look({{'error': '{HOSTILE_TEXT}'}})",
        f"send({{'say': '{HOSTILE_TEXT}'}}); look(told())",
        f"send({{'error': '{HOSTILE_TEXT}', 'code': 1}})",
        f"send({{'error': '{HOSTILE_TEXT}', 'code': 2}})",
        f"send({{'error': '{HOSTILE_TEXT}', 'code': 3}})",
        f"look(told(files={{'{HOSTILE_TEXT}': 5}}))",
        f"look(told(state=['{HOSTILE_TEXT}'] * 6))",
    ],
)
@pytest.mark.parametrize(
    "words", [["ls"], ["ls", RUN], ["logs", RUN], ["cancel", RUN], ["report", RUN], ["fetch", RUN]]
)
def test_texts_of_a_host_reach_the_terminal_without_what_a_terminal_acts_on(victim, body, words):
    also = "".join(answering(name, body) for name in ("log", "cancel", "contents")) if "send" in body else ""
    victim.liar.says(answering("look", body) + also)
    victim.type_only(*words)


RECORDS = {
    "plan.json": {"name": "T", "words": ["T"], "recipe": "T", "framework": "T", "swept": [["T", "T"]], "queue": "T",
                  "container": {"kind": "T", "image": "T"}, "script": {"file": "T", "arguments": ["T"]}},
    "status.json": {"state": "failed", "attempt": 1, "reason": "T", "started": "T", "ended": "T"},
    "submission.json": {"queue": "T", "host": "T", "submitted": "T", "sweep": "T"},
    "result.json": {"status": "failed", "attempts": 1, "reason": "T", "framework": "T", "recipe": "T", "mechanism": "T",
                    "requested": {"T": "T"}, "effective": {"amp": "T", "dtype": "T"}, "nonfinite": ["T"],
                    "observed": {"verdict": "T", "why": "T", "dtype": "T", "device": "T", "param_dtypes": {"T": 1}},
                    "throughput": {"unit": "T", "mean": 1.0, "p10": 1.0, "p90": 1.0}, "loss": {"last": 1.0},
                    "eval": {"accuracy": 0.5, "T": 0.1}, "profile": {"tool": "T", "trace": "T", "steps": [1, 2]},
                    "versions": {"T": "T"}, "digests": {"T": "T"}, "hardware": {"T": "T"},
                    "comparison": {"verdict": "T"}},
    "provenance.json": {"created": "T", "host": "T", "command": ["T"], "code": {"digest": "T", "commit": "T"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "words", [["ls"], ["ls", RUN], ["watch", RUN], ["report", RUN], ["report", RUN, "--markdown", "-"], ["cancel", RUN]]
)
def test_records_that_a_host_sent_reach_the_terminal_without_what_a_terminal_acts_on(victim, words):
    hostile = json.loads(f'"{HOSTILE_TEXT}"'.replace("\\x", "\\u00"))
    files = {name: [[1, 2], json.dumps(values).replace('"T"', json.dumps(hostile))] for name, values in RECORDS.items()}
    state = ["failed", hostile, 1, 1, "2026-01-02T03:04:05Z", None]
    victim.liar.says(answering("look", f"look(told(state={state!r}, files={files!r}))"))
    victim.type_only("ls")
    said = victim.type_only(*words)
    assert "owned" not in said.out or words[0] != "ls"
    assert (victim.run / "result.json").exists()


def test_a_defect_over_there_is_its_own_message(victim, tmp_path):
    """With the launcher's own far side: an argument that it can't know."""
    address = victim.liar.address(python=sys.executable)
    with pytest.raises(Unavailable, match=r"liar: the launcher there failed: TypeError: .*lines.*\(agent.py:\d+\)"):
        host.connect(address).ask("hello", host.hello, lines=5)
    assert host.connect(address).ask("hello", host.hello)["system"]


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_changed_host_key_is_refused_and_never_advised_to_be_accepted_unseen(liar, tmp_path, transport):
    keys(tmp_path, name="other")
    changed = tmp_path / "known"
    changed.write_text(f"[127.0.0.1]:{liar.port} {(tmp_path / 'other.pub').read_text()}")
    config = tmp_path / "config"
    config.write_text(liar.config.read_text().replace(str(liar.folder / "known"), str(changed)))
    address = Address(destination="liar", config=str(config), transport=transport)
    with pytest.raises(Unavailable) as refused:
        host.Host(address).ask("hello", host.hello)
    first, *others = str(refused.value).splitlines()
    shown = subprocess.run(["ssh-keygen", "-lf", str(liar.folder / "host.pub")], capture_output=True, text=True).stdout
    assert "is not the one that is known" in first and "Somebody may be listening in" in first
    assert shown.split()[1] in first
    forget = next(shlex.split(line) for line in others if "ssh-keygen" in line)
    assert str(changed) in forget and f"[127.0.0.1]:{liar.port}" in forget


def test_an_ssh_config_may_be_named_from_home_or_from_the_folder_where_it_was_typed(
    victim, liar, tmp_path, monkeypatch
):
    """A run is asked about from any folder, so the whole path is kept."""
    monkeypatch.setenv("HOME", str(liar.folder))
    monkeypatch.chdir(liar.folder.parent)
    for typed in ("~/ssh_config", f"{liar.folder.name}/ssh_config"):
        for transport in ("fabric", "openssh"):
            cluster = build(SshCluster, {"host": "liar", "ssh_config": typed, "transport": transport})
            address = addresses.of(cluster)
            assert address.config == str(liar.config)
            with monkeypatch.context() as elsewhere:
                elsewhere.chdir(tmp_path)
                asked = dataclasses.replace(address, python=sys.executable)
                assert host.connect(asked).ask("hello", host.hello)["system"]


POINTERS = {
    "no JSON": "{",
    "null": "null",
    "a list": "[1]",
    "deep": "[" * 100_000,
    "empty": "{}",
    "no address": json.dumps({"address": None, "root": "/r", "token": "t", "submitter": None, "created": 1}),
    "a dash": json.dumps({"address": {"destination": "-oProxyCommand=x"}, "root": "/r", "token": "t", "created": 1}),
    "no host": json.dumps({"address": {"destination": "a b:c"}, "root": "/r", "token": "t", "created": 1}),
    "a transport": json.dumps(
        {"address": {"destination": "b", "transport": "x"}, "root": "", "token": "", "created": 1}
    ),
    "a root": json.dumps({"address": {"destination": "b"}, "root": 5, "token": "t", "created": 1}),
    "a time": json.dumps({"address": {"destination": "b"}, "root": "/", "token": "t", "created": "x"}),
    "a config": json.dumps({"address": {"destination": "b", "config": 5}, "root": "/", "token": "t", "created": 1}),
    "a timeout": json.dumps(
        {"address": {"destination": "b", "connect_timeout": "1"}, "root": "/", "token": "t", "created": 1}
    ),
}
KNOWN = {
    "no JSON": "{",
    "null": "null",
    "empty": "{}",
    "no state": json.dumps({"state": None, "seen": 1, "step": None, "stamps": {}, "log": None}),
    "twenty items": json.dumps({"state": ["done"] * 20, "seen": 1, "step": None, "stamps": {}, "log": None}),
    "a time": json.dumps({"state": ["done", "", 1, 0, None, None], "seen": "x", "stamps": {}, "log": None}),
    "stamps": json.dumps({"state": ["done", "", 1, 0, None, None], "seen": 1, "stamps": 5, "log": None}),
    "a stamp": json.dumps({"state": ["done", "", 1, 0, None, None], "seen": 1, "stamps": {"plan.json": 5}}),
    "a log": json.dumps({"state": ["done", "", 1, 0, None, None], "seen": 1, "stamps": {}, "log": 5}),
}
LOOKING = [["ls"], ["ls", RUN], ["ls", "--json"], ["watch", OTHER], ["report", OTHER], ["cancel", RUN], ["logs", RUN]]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_damaged_pointer_costs_its_own_run_and_hides_no_other(victim, words):
    for damage in POINTERS.values():
        (victim.run / "elsewhere.json").write_text(damage)
        victim.before = victim.state()
        said = victim.type_only(*words)
        assert "Traceback" not in said.err
        if words == ["ls"]:
            assert (
                said.code == 0 and OTHER in said.out and "elsewhere.json in" in said.out and "can't be read" in said.out
            )


@pytest.mark.parametrize("words", [["ls"], ["ls", RUN], ["ls", "--json"]], ids=" ".join)
def test_a_damaged_memory_of_a_run_is_asked_for_again(victim, words):
    for damage in KNOWN.values():
        (victim.run / "known.json").write_text(damage)
        said = victim.type_only(*words)
        assert said.code == 0 and "running" in said.out


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


def test_a_fabric_that_is_missing_hides_no_other_run(victim, monkeypatch):
    monkeypatch.setitem(sys.modules, "fabric", None)
    monkeypatch.delitem(sys.modules, "launcher.ssh.fabric_transport", raising=False)
    monkeypatch.delattr("launcher.ssh.fabric_transport", raising=False)
    said = victim.type_only("ls")
    assert said.code == 0 and OTHER in said.out and "liar: SSH needs fabric" in said.out


def test_another_host_answers_all_the_same(victim, tmp_path):
    """An honest one, with the launcher's own far side, beside one that never answers."""
    victim.liar.says(answering("look", "while True: beat(); time.sleep(0.1)"))
    good, there = "20260102-030408-green-fox", tmp_path / "there"
    there.mkdir()
    run_folders.finished(there, good)
    address = victim.liar.address("honest", python=sys.executable)
    remote_record.create(good, Pointer(address=address, root=str(there), token="t", created=time.time()))
    said = victim.type_only("ls")
    assert said.code == 0 and said.seconds < SECONDS + 8
    states = {line.split()[0]: line.split()[1:3] for line in said.out.splitlines() if line.startswith("2026")}
    assert states[good] == ["done", "honest"] and states[RUN][0] == "unreachable" and states[OTHER][0] == "done"


def test_a_run_whose_folder_may_not_be_read_hides_no_other_here_or_over_there(tmp_path):
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


@pytest.mark.parametrize("value", ["None", "5", "[]", "{}", "{'host': 5}", "{'x': 1}", "{'host': '\\x1b[2J'}"])
@pytest.mark.parametrize("request_", ["probe", "hello", "examine"])
def test_a_lie_about_the_host_is_one_line(victim, request_, value):
    victim.liar.says(answering(request_, f"answer({value})"))
    where = [f"cluster.ssh_config={victim.liar.config}", f"cluster.python={victim.liar.liar}", "run_root=/runs"]
    verb = "plan" if request_ == "probe" else "doctor"
    said = victim.type_only(verb, "cluster=ssh", "cluster.host=liar", *where)
    assert said.code == 3 and "liar sent data that the protocol does not allow" in said.out + said.err


@pytest.mark.parametrize("value", ["None", "5", "['launcher/__init__.py']", "['../../outside/precious']", "[5]", "{}"])
def test_a_host_is_sent_no_file_but_those_of_the_snapshot(victim, value):
    victim.liar.says(answering("lacking", f"answer({value})"))
    reached = host.connect(victim.liar.address())
    plan = types.SimpleNamespace(run_root="/runs", code="0" * 64, code_dir="/runs/.code/0")
    with pytest.raises(BadAnswer, match="sent data that the protocol does not allow"):
        submit_client._lacking(reached, plan, {"train.py": "0" * 64})


def test_a_shell_of_a_run_here_follows_no_pointer_that_lies_in_its_folder(victim):
    """A pointer names a configuration, and that may name a command."""
    folder = victim.folder / "here" / OTHER
    remote_record.write(folder, Pointer(address=victim.liar.address(), root="/r", token="t", created=0.0))
    assert shell._address(Run(str(folder.parent), OTHER)) is None
    assert shell._address(Run(str(victim.run.parent), RUN)) == victim.liar.address()
    (victim.run / remote_record.POINTER).write_text("{")
    with pytest.raises(UsageError, match="can't be read"):
        shell._address(Run(str(victim.run.parent), RUN))


def test_runs_elsewhere_are_known_by_any_path_to_them(victim, tmp_path):
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
    "no greeting": "raw(b'\\nlauncher-agent ready\\n'); send(None)",
    "a greeting of a wrong type": "raw(b'\\nlauncher-agent ready\\n'); send({'host': 5})",
    "an endless greeting": "raw(b'\\nlauncher-agent ready\\n'); send({**GREETING, 'host': 'x' * 10**6})",
    "heartbeats for a greeting": "raw(b'\\nlauncher-agent ready\\n')\nwhile True: beat()",
}


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("body", STARTS.values(), ids=STARTS)
def test_a_host_that_begins_wrong_costs_one_line(victim, body, transport):
    victim.liar.says(body)
    address = victim.liar.address(transport=transport)
    remote_record.write(victim.run, Pointer(address=address, root="/r", token="t", created=time.time()))
    said = victim.type_only("ls")
    assert said.code == 0 and OTHER in said.out and "unreachable" in said.out
    assert len([line for line in said.out.splitlines() if line.startswith("liar: ")]) == 1
    assert said.seconds < 3 * SECONDS + 8


def test_an_honest_host_keeps_what_would_not_be_taken_and_says_so(victim, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    folder = run_folders.finished(there, RUN)
    for name in ("known.json", "line\nend", "note.txt"):
        (folder / name).write_text("x")
    address = victim.liar.address("honest", python=sys.executable)
    remote_record.write(victim.run, Pointer(address=address, root=str(there), token="t", created=time.time()))
    said = victim.type_only("fetch", RUN)
    assert said.code == 0 and "honest: 2 files stay there, as 'known.json'" in said.err
    assert (victim.run / "note.txt").exists() and not (victim.run / "line\nend").exists()


def test_a_run_that_a_host_says_it_ended_and_cannot_show_is_not_taken_for_ended(victim):
    victim.liar.says(answering("look", "look(None)"))
    said = victim.type_only("cancel", "--now", RUN)
    assert said.code == 3 and BAD in said.out


def test_cancel_now_waits_for_no_grace_of_a_host_that_does_not_answer(victim):
    victim.liar.says(answering("cancel", "while True: beat(); time.sleep(0.1)"))
    said = victim.type_only("cancel", "--now", RUN)
    assert said.code == 1 and LATE in said.out
    assert said.seconds < SECONDS + 8


COMPLAINTS = {
    "without end": "while True: os.write(2, b'x' * 65536); beat()",
    "for a terminal": "os.write(2, b'\\x1b]0;owned\\x07\\x9b31m\\xc2\\x9b2J a\\xe2\\x80\\xaeb\\r\\n'); sys.exit(1)",
}


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("words", [["ls"], ["logs", RUN]], ids=" ".join)
@pytest.mark.parametrize("body", COMPLAINTS.values(), ids=COMPLAINTS)
def test_what_a_host_complains_of_ends_and_is_text(victim, body, words, transport):
    victim.liar.says("".join(answering(name, body) for name in ("look", "log")))
    address = victim.liar.address(transport=transport)
    remote_record.write(victim.run, Pointer(address=address, root="/r", token="t", created=time.time()))
    said = victim.type_only(*words)
    assert said.seconds < 2 * SECONDS + 8
    assert words != ["ls"] or OTHER in said.out


def test_a_host_that_tells_of_each_run_late_holds_up_no_listing(victim, monkeypatch):
    monkeypatch.setattr(remote_status, "LONGEST_LOOK", SECONDS)
    pointer = Pointer(address=victim.liar.address(), root="/runs", token="t", created=time.time())
    for number in range(10):
        remote_record.create(f"20260103-03040{number}-brave-otter", pointer)
    late = "for each in request['with']['runs']:\n    time.sleep(1.2)\n    item(told())\nanswer()"
    victim.liar.says(answering("look", late))
    said = victim.type_only("ls")
    assert said.seconds < 3 * SECONDS and OTHER in said.out
    assert said.out.count("unreachable") >= 8


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
def test_the_far_side_is_kept_where_nobody_else_may_write(tmp_path, umask):
    """The zip is code that runs."""
    command = bootstrap.command(hashlib.sha256(b"zip").hexdigest(), 3, sys.executable)
    subprocess.run(
        ["sh", "-c", f"umask {umask}; {command}"],
        input=b"zip", capture_output=True, env={"HOME": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    found = [each.stat().st_mode & 0o077 for each in tmp_path.rglob("*")]
    assert found == [0, 0, 0]
