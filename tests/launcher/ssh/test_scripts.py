"""A script of the user's own over SSH: the file goes along, and it starts in a folder of its run's own."""

from __future__ import annotations

import json

TELL = "import json, os, sys\njson.dump([sys.argv[1:], os.getcwd(), open(__file__).read()], open('told.json', 'w'))\n"


# Says that it has torch, as the plan wants to know; what it runs is run by a real Python.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then printf '3.11.0\\ntorch 2.13.0\\n'; else exec {real} "$@"; fi
"""


def test_a_script_and_its_arguments_travel_and_it_works_in_its_runs_own_folder(far, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "tell.py").write_text(TELL)
    monkeypatch.chdir(project)
    python = far.there / "real"
    python.write_text(PYTHON.format(real=far.testbed.python))
    python.chmod(0o755)
    bare = ("train.bare=true", "require_proof=false", "amp=o0")
    words = ("recipe=script", "script=tell.py", *bare, f"python={python}", "--", "--lr", "0.1", "it's a b")
    (run,) = far.submit(*words)
    assert far.until(run, "done", "failed") == "done", far.type("logs", run).err
    work = far.folder(run) / "work"
    arguments, folder, text = json.loads((work / "told.json").read_text())
    assert (arguments, folder, text) == (["--lr", "0.1", "it's a b"], str(work), TELL)
