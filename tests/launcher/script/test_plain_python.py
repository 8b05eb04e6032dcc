"""A script on this machine finds the world that plain Python gives it: variables, search path, files beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = str(Path(__file__).parents[3])
TRAIN = """\
'''A script of a package-less project.'''
import json, os, pickle, signal, sys
from pathlib import Path
import helper, fromlib
class Thing:
    pass
if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "written.txt").write_text("by the script")
    main = {name: repr(value).split(" at 0x")[0] for name, value in globals().items() if name.startswith("__")}
    import late
    told = {
        "main": list(main.items()), "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "umask": os.umask(0o22),
        "data": (here / "data/ignored.txt").read_text(), "pickle": pickle.dumps(Thing()).hex(),
        "modules": [helper.VALUE, helper.__file__, late.VALUE, late.__file__, fromlib.__file__],
        "handlers": {number.name: repr(signal.getsignal(number)).split(" at ")[0] for number in signal.Signals},
        "flags": repr(sys.flags), "prefix": sys.prefix, "executable": sys.executable, "environ": dict(os.environ),
    }
    Path(os.environ["OUT"]).write_text(json.dumps(told))
"""
OURS = ("LAUNCHER_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
TORCHS = "TORCHINDUCTOR_CACHE_DIR"
"""Torch sets it where its compiler is imported."""
VALUE = "0.5 'of $(id) the shell'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in (
        ("tools/train.py", TRAIN),
        ("tools/helper.py", "VALUE = 'first'\n"),
        ("tools/late.py", "VALUE = 'first'\n"),
        ("tools/data/ignored.txt", "42"),
        ("lib/fromlib.py", ""),
        ("datasets/__init__.py", "raise Exception('plain Python does not import this')\n"),
        (".gitignore", "data/\nwritten.txt\n"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def typed(project: Path, *words: str, code: int = 0, **more: str) -> str:
    """What Python prints for these words, in a shell that has more than a job gets elsewhere."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    shell = {"LR": VALUE, "DB_PASSWORD": "hush-1", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"lib:{CHECKOUT}"}
    of_bash = {"CDPATH": "/tmp", "POSIXLY_CORRECT": "1", "BASH_FUNC_rm%%": "() {  :\n}", "SHLVL": "7", "_": "python"}
    env = {**own, **shell, **of_bash, "PWD": str(project), "OUT": str(project.parent / "told.json"), **more}
    argv, out = [sys.executable, *words], subprocess.PIPE
    ended = subprocess.run(argv, cwd=project, env=env, stdout=out, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert ended.returncode == code, ended.stdout
    return ended.stdout


def told(project: Path) -> dict[str, Any]:
    """What the script told of itself, without the launcher's own variables."""
    values = json.loads((project.parent / "told.json").read_text())
    values["environ"] = {name: text for name, text in values["environ"].items() if not name.startswith((*OURS, TORCHS))}
    return dict(values)


def files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in filter(Path.is_file, folder.rglob("*")):
        yield path.name, path.read_text(errors="replace")


@pytest.mark.slow
def test_a_script_is_told_what_plain_python_tells_it_and_resumed_it_has_its_code_and_its_variables(
    project: Path, root: Path
) -> None:
    typed(project, "tools/train.py", "--lr", "1")
    plain = told(project)
    (project / "tools/written.txt").unlink()
    words = ("amp=o0", "framework=torch", "require_proof=false", "telemetry.every=0", f"run_root={root}")
    typed(project, "-m", "launcher", "tools/train.py", *words, "--", "--lr", "1")
    assert told(project) == plain
    assert (project / "tools/written.txt").exists()
    (run,) = root.glob("2*")
    (code,) = (root / ".code").glob("[0-9a-f]*")
    named = [str(name) for name in json.loads((code / ".names").read_text())]
    there = {path.relative_to(code).as_posix() for path in code.rglob("*") if path.is_file()}
    written = [name for name in there - {*named, ".names"} if not name.endswith("/__pycache__")]
    assert not [name for name in written if name.startswith("script/")], "the files that keep Python out aside"
    assert [name for name, text in files(run) if VALUE in text or "hush-1" in text] == []
    assert (run / ".shell").stat().st_mode & 0o777 == 0o600

    (project / "tools/late.py").write_text("VALUE = 'second'\n")
    (project / "tools/train.py").write_text("1 / 0\n")
    again = ("-m", "launcher", "resume", run.name, "script.resume_arguments=[--again]")
    refused = typed(project, *again, code=2, LR="0.1", MORE="1", TERM="another")
    assert "began in a shell with other values of LR, MORE: set them as they were, or say env=here" in refused
    assert sorted(path.name for path in (run / "attempts").iterdir()) == ["1"]
    typed(project, *again)
    expected = {**plain, "argv": [*plain["argv"], "--again"]}
    assert told(project) == expected
    typed(project, *again, "env=here", LR="0.1")
    assert told(project) == {**expected, "environ": {**plain["environ"], "LR": "0.1"}}
    typed(project, *again, code=2)
