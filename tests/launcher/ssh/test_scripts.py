"""A script of the user's own over SSH: the file goes along, and it starts in a folder of its run's own."""

from __future__ import annotations

import json

from tests.launcher.ssh.far import until

TELL = """\
import json, os, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
tool = subprocess.run([f"{here}/tool.sh"], capture_output=True, text=True, check=True).stdout
table = open("data/table").read()
json.dump([sys.argv[1:], os.getcwd(), open(__file__).read(), tool, table], open("told.json", "w"))
"""

# Says that it has torch, as the plan wants to know; what it runs is run by a real Python.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then printf '3.11.0\\ntorch 2.13.0\\n'; else exec {real} "$@"; fi
"""


def test_a_script_is_sent_with_its_arguments_and_runs_in_its_own_folder(far, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "tell.py").write_text(TELL)
    (project / "tool.sh").write_text("#!/bin/sh\necho a tool\n")
    (project / "tool.sh").chmod(0o755)
    data = far.there / "sets" / "data"
    data.mkdir(parents=True)
    (data / "table").write_text("a table")
    monkeypatch.chdir(project)
    python = far.there / "real"
    python.write_text(PYTHON.format(real=far.testbed.python))
    python.chmod(0o755)
    bare = ("train.bare=true", "require_proof=false", "amp=o0")
    words = ("recipe=script", "script=tell.py", *bare, f"python={python}")
    lacking = far.refused(*far.words, *words, f"script.inputs=[{data},{data}2]")
    assert f"script.inputs=[{data}2]: there is no such file or folder on " in lacking
    (run,) = far.submit(*words, f"script.inputs=[{data}]", "sweep.lr=0.1", "--", "--lr", "{lr}", "it's a b")
    assert far.until(run, "done", "failed") == "done", far.type("logs", run).err
    work = far.folder(run) / "work"
    assert json.loads((work / "told.json").read_text()) == [
        ["--lr", "0.1", "it's a b"],
        str(work),
        TELL,
        "a tool\n",
        "a table",
    ]
    assert (work / "data").readlink() == data


def test_the_output_of_a_remote_script_is_shown_while_the_launcher_waits(far, tmp_path, monkeypatch):
    (tmp_path / "tell.py").write_text("import sys\nprint('printed there')\nprint('complained', file=sys.stderr)\n")
    monkeypatch.chdir(tmp_path)
    bare = ("train.bare=true", "require_proof=false", "amp=o0", "gpus=0", "framework=torch")
    done = far.ok("tell.py", *far.words, *bare, f"python={far.testbed.python}", "wait=true")
    assert "\nprinted there\n" in done.out and "complained\n" in done.err


SAVES = """\
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "saved")
def save(*_):
    saved.write_text("x")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("begun", sys.argv[1:], saved.exists(), flush=True)
if not saved.exists():
    time.sleep(300)
"""


def test_a_cancelled_remote_script_saves_and_can_be_resumed(far, tmp_path, monkeypatch):
    (tmp_path / "saves.py").write_text(SAVES)
    monkeypatch.chdir(tmp_path)
    words = ("recipe=script", "script=saves.py", "amp=o0", "gpus=0", "require_proof=false", "workdir=run")
    (run,) = far.submit(*words, f"python={far.testbed.python}", "script.resume_arguments=[--resume]")
    log = far.folder(run) / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun [] False" in log.read_text(), 120)
    ended = far.ok("cancel", run)
    assert "cancelled after" in ended.out and "on request" in ended.out
    assert far.type("resume", run).code == 0
    assert far.until(run, "done", "failed", seconds=120) == "done"
    assert "begun ['--resume'] True" in (far.folder(run) / "attempts/2/stdout.log").read_text()
