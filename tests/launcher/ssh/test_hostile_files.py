"""Hosts that lie about the logs and files of their runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from types import SimpleNamespace

import pytest

from launcher import units
from launcher.__main__ import main
from launcher.errors import Unavailable
from launcher.runs import processes, remote_record
from launcher.runs.store import Run
from launcher.ssh import fetching, session
from launcher.ssh.failures import Retries, Unreachable
from tests.launcher import run_folders
from tests.launcher.ssh.hostile import answering
from tests.launcher.ssh.victim import BAD, INSIDE, LATE, NAMES, OTHER, REFUSED, RUN, pointer_to

DIGEST = hashlib.sha256(b"owned").hexdigest()
SERVED = f"""for name, *_ in request['with']['wanted']:
    item({{'name': name, 'size': 5, 'mtime': 6, 'offset': 0}}); frame(b'B', b'owned')
    item({{'name': name, 'sha256': '{DIGEST}', 'short': 0}})
answer()"""


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


def test_a_false_answer_about_a_log_is_one_line(victim):
    runs = victim.runs(answering("log", f"def head(**changes): return {HEAD}\n{body}") for body in LOGS.values())
    refusals = victim.refusals([functools.partial(victim.read_log, run) for run in runs])
    for name, text in zip(LOGS, refusals, strict=True):
        assert REFUSED in text or LATE in text, name
    victim.liar.says(answering("log", f"def head(**changes): return {HEAD}\n{LOGS['null']}"))
    done = victim.type("logs", RUN)
    assert done.code == 3 and BAD in done.err


def test_the_log_of_a_host_reaches_a_pipe_as_text_alone(victim):
    """Which may be a pager."""
    log = b"\t\x1b[31mred\x1b[0m \x1b]0;owned\x07\n"
    sizes = f"place={{'attempt': 1, 'stdout': {len(log)}, 'stderr': 0}}, sizes=[{len(log)}, 0]"
    body = f"def head(**changes): return {HEAD}\nitem(head({sizes})); frame(b'B', {log!r}); answer()"
    victim.liar.says(answering("log", body))
    main(["logs", RUN])
    assert victim.capfd.readouterr().out == "\tred \n"


CONTENTS = (
    "None", "5", "{}", "['x']", "[['x', 1]]", "[['x', '1', 2]]", "[['x', -1, 2]]", "[['x', 1, 2**70]]", "[[5, 1, 2]]",
    *(f"[[{name!r}, 5, 6]]" for name in NAMES if name not in INSIDE and "\\" not in name),
    "[['attempts/../../x', 5, 6]]", "[['a\\u202eb', 5, 6]]", "[['\\ud800', 5, 6]]", "[['.ssh/config', 5, 6]]",
    "[['x', 5, 6]] * 200001",
)  # fmt: skip


@pytest.mark.parametrize("to", ["", "to"])
def test_a_fetch_takes_no_name_that_leads_out_or_to_our_own_records(victim, to):
    lists = [listed.replace("{outside}", str(victim.outside)).replace("{other}", OTHER) for listed in CONTENTS]
    runs = victim.runs(answering("contents", f"answer({listed})") + answering("files", SERVED) for listed in lists)
    calls = [functools.partial(fetching.fetch, run, run.folder / to, print) for run in runs]
    for listed, text in zip(CONTENTS, victim.refusals(calls), strict=True):
        assert REFUSED in text, listed
    assert not [path for path in victim.folder.rglob("*") if path.is_file() and path.read_bytes() == b"owned"]


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


def test_a_fetch_takes_the_files_that_were_asked_for_and_no_more_of_them_than_was_announced(victim):
    lie = f"def head(**changes): return {GIVEN}\ndef end(): return {{'name': 'x', 'sha256': '{DIGEST}', 'short': 0}}\n"
    listed = answering("contents", "answer([['x', 5, 6]])")
    runs = victim.runs(listed + answering("files", lie + body) for body in FILES.values())
    refusals = victim.refusals([functools.partial(fetching.fetch, run, run.folder, print) for run in runs])
    for name, text, run in zip(FILES, refusals, runs, strict=True):
        assert REFUSED in text or LATE in text, name
        assert sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file()) < 10_000, name
    victim.liar.says(listed + answering("files", lie + FILES["null"]))
    done = victim.type("fetch", RUN)
    assert done.code == 3 and BAD in done.err
    for content, short in (("other", 0), ("owned", 1)):
        end = f"item({{**end(), 'short': {short}}}); answer()"
        victim.liar.says(listed + answering("files", f"{lie}item(head()); frame(b'B', b'{content}'); {end}"))
        done = victim.type_only("fetch", RUN)
        assert done.code == 1 and "x changed while it was read, or was damaged on the way; fetch again" in done.err
        assert not list(victim.run.glob("*x*"))


def test_only_a_host_that_answered_before_is_waited_for(victim, monkeypatch):
    def refuse(*_):
        raise Unavailable("gone")

    def wait(*_):
        raise InterruptedError

    monkeypatch.setattr(Retries, "wait", wait)
    run = Run(str(victim.run.parent), RUN)
    victim.liar.says(answering("look", "sys.exit()"))
    with pytest.raises(InterruptedError):
        fetching.fetch(run, run.folder, print)
    monkeypatch.setattr(session, "open_stream", refuse)
    with pytest.raises(Unreachable, match=r"^gone$"):
        fetching.fetch(run, run.folder, print)


def test_a_fetch_follows_no_link_in_its_target(victim, tmp_path):
    target = tmp_path / "outside" / RUN
    target.mkdir()
    (target / "x").symlink_to(victim.outside / "precious")
    (target / "folder").symlink_to(victim.outside)
    victim.before = victim.state()
    victim.liar.says(answering("contents", "answer([['folder/precious', 5, 6]])") + answering("files", SERVED))
    assert victim.type_only("fetch", RUN, f"to={victim.outside}").code == 3
    assert (victim.outside / "precious").read_text() == "precious"
    victim.liar.says(answering("contents", "answer([['x', 5, 6]])") + answering("files", SERVED))
    assert victim.type_only("fetch", RUN, f"to={victim.outside}").code == 0
    assert (victim.outside / "precious").read_text() == "precious" and (target / "x").read_text() == "owned"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / RUN).symlink_to(target)
    refused = victim.type_only("fetch", RUN, f"to={tmp_path / 'shared'}")
    assert refused.code == 2 and "a link stands in its place" in refused.err


def test_a_fetched_run_is_a_copy_that_no_command_changes(victim, tmp_path):
    """A host that names a process of mine, a queue with a plugin or a command in a plan gets none of them used."""
    record = {
        "queue": "slurm",
        "slurm_conf": str(tmp_path / "owned.conf"),
        "job": "7",
        "process": processes.to_json(processes.identity(os.getpid())),
    }
    sent = {
        "submission.json": json.dumps(record),
        "status.json": json.dumps({"state": "running", "attempt": 1, "process": record["process"]}),
        "plan.json": json.dumps(
            {"container": {"kind": "docker", "runtime": {"command": ["touch", str(tmp_path / "owned")]}}}
        ),
    }
    listed = [[name, len(text), 6] for name, text in sent.items()]
    served = f"sent = {sent!r}\nimport hashlib\nfor name, *_ in request['with']['wanted']:\n"
    served += "    text = sent[name].encode(); item({'name': name, 'size': len(text), 'mtime': 6, 'offset': 0})\n"
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


def test_a_host_does_not_send_files_that_would_be_refused_and_names_them(victim, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    folder = run_folders.finished(there, RUN)
    for name in ("known.json", "line\nend", "note.txt"):
        (folder / name).write_text("begun, and ended")
    (folder / "saved/last").mkdir(parents=True)
    (folder / "saved/last/weights").write_text("weights")
    address = victim.liar.address("honest", python=sys.executable)
    remote_record.write(victim.run, pointer_to(address, str(there)))
    stamp = (folder / "note.txt").stat()
    begun = victim.run / f".note.txt.{stamp.st_size}-{stamp.st_mtime_ns}.part"
    begun.write_text("begun")
    others = [victim.run / ".note.txt.1-2.part", victim.run / ".other.1-2.part"]
    for other in others:
        other.touch()
    shown = []

    @contextlib.contextmanager
    def watching(text):
        shown.append(text())
        yield
        shown.append(text())

    victim.monkeypatch.setattr(fetching, "waiting", SimpleNamespace(shown=watching))
    done = victim.type_only("fetch", RUN)
    assert done.code == 0 and "honest: 2 files stay there, as 'known.json'" in done.err
    missing = stamp.st_size - len("begun") + len("weights") + (folder / "run.sh").stat().st_size
    size = units.size(missing)
    assert f"{RUN}  3 files, {size} fetched" in done.out
    assert shown == [f"{RUN}: asking for its files", f"{RUN}: 3 of 3 files, {size} of {size}"]
    assert (victim.run / "note.txt").read_text() == "begun, and ended" and not (victim.run / "line\nend").exists()
    assert [path.exists() for path in (begun, *others)] == [False, False, True]
