"""Hosts that lie: a real sshd with a hostile program behind it. Nothing that it says is written outside its run's
folder, run, or shown raw; it costs one line, and all other runs are shown."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher import runs
from launcher.__main__ import main
from launcher.remote import host, pointers
from launcher.remote.pointers import Pointer
from launcher.remote.requests import REQUESTS
from tests.launcher import run_folders
from tests.launcher.remote.hostile import SSHD, Hostile

pytestmark = pytest.mark.skipif(not os.access(SSHD, os.X_OK), reason="needs sshd (Debian: openssh-server)")

RUN, OTHER = "20260102-030405-brave-otter", "20260102-030406-calm-heron"
SECONDS = 2.0
"""In which each answer has to be here, in these tests."""
BAD = "liar does not speak as a launcher should: "
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
        runs.remember_root(roots)
        self.run = pointers.create(RUN, Pointer(address=liar.address(), root="/runs", token="t", created=time.time()))
        self.before = self.state()

    def state(self) -> dict[str, bytes]:
        """All files that no answer may change."""
        found = {}
        for path in self.folder.rglob("*"):
            inside = path.is_relative_to(self.run) and path.name != pointers.POINTER
            if path.is_file() and not inside and ".unfinished" not in path.parts:
                found[str(path)] = path.read_bytes()
        return found

    def type(self, *words: str) -> Said:
        self.capfd.readouterr()
        began = time.monotonic()
        code = main(list(words))
        taken = time.monotonic() - began
        host.close_all()
        said = Said(code, *self.capfd.readouterr(), taken)
        assert "Traceback" not in said.err
        shown = (said.out + said.err).replace("\n", "")
        assert all(each.isprintable() for each in shown), ascii(shown)
        assert self.state() == self.before
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
    monkeypatch.setattr(host, "OPENING", SECONDS)
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
