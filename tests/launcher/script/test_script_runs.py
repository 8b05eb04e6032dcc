"""Scripts of the user's own as real runs: started, ended, and reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.launcher import warm
from tests.launcher.run_folders import called

WORDS = (*"__SAMPLE__ __COMMAND__ RUN_ID $RUN ${attempt} ' \" \\ %s".split(), "$(touch ran)", "`touch ran`")
"""Placeholders that the script had, and what bash reads."""
TRAIN = """\
import sys
import torch
from torch import nn
from helper import STEPS
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(STEPS):
    optimizer.zero_grad()
    (net(torch.ones(4, 8)) ** 2).mean().backward()
    optimizer.step()
print("told", sys.argv[1:], open("data.txt").read())
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text("STEPS = 3\n")
    (folder / "data.txt").write_text("here")
    return folder


def launch(project, root, *words, code=0):
    """What a script's run prints, and its folder."""
    settings = Path(os.environ["XDG_CONFIG_HOME"], "amp-launcher/config.yaml")
    settings.parent.mkdir(parents=True)
    settings.write_text(f"python: {warm.python()}\n")
    done = called("recipe=script", f"run_root={root}", *words, cwd=project)
    printed = done.stderr + done.stdout
    assert done.returncode == code, printed
    (run,) = root.glob("2*")
    return printed, run


def test_a_script_runs_from_a_snapshot_in_the_folder_where_it_was_typed(project, root):
    printed, run = launch(project, root, "script=train.py", "amp=o1", "--", "--lr", "0.1", "a b")
    assert "train-o1 amp=o1 -- --lr 0.1 'a b'" in printed
    assert "proved: bfloat16" in printed
    log = (run / "attempts" / "1" / "stdout.log").read_text()
    assert "told ['--lr', '0.1', 'a b'] here" in log
    code = root / ".code" / json.loads((run / "plan.json").read_text())["code"] / "script"
    files = [path for path in code.iterdir() if path.is_file()]
    assert sorted(path.name for path in files) == ["__pycache__", "data.txt", "helper.py", "train.py"]
    assert all(not path.stat().st_mode & 0o222 for path in files)


def test_what_no_entry_of_sys_path_has_is_imported_from_the_root_of_the_checkout_and_from_src_last(tmp_path, root):
    checkout = tmp_path / "checkout"
    for name, text in (
        ("tools/train.py", "import above, inside\nprint(above.__file__, inside.__file__)\n"),
        ("above/__init__.py", ""),
        ("src/inside/__init__.py", ""),
    ):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text(text)
    git = ["git", "-C", checkout, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
        subprocess.run([*git, *words], check=True)
    with open(checkout / "above" / "__init__.py", "a") as stream:
        stream.write("CHANGED = 1\n")
    printed, run = launch(checkout, root, "script=tools/train.py", "framework=torch", "amp=o0", "require_proof=false")
    assert f"{checkout}/above/__init__.py {checkout}/src/inside/__init__.py" in printed
    assert f"inside is imported from {checkout}/src, which plain Python would not search" in printed
    origin = json.loads((run / "provenance.json").read_text())["script"]
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert (origin["root"], origin["commit"], origin["dirty"]) == (str(checkout), commit, True)
    assert "+CHANGED = 1" in origin["diff"]


def test_a_user_s_words_reach_the_script_unchanged(project, tmp_path):
    (project / "tell.py").write_text("import os, sys\nprint('told', [*sys.argv[1:], os.environ['TAG'], os.getcwd()])\n")
    words = ["--tag", *WORDS, "__SAMPLE__ touch ran", "--", "-m"]
    tag, root = "; ".join(WORDS), tmp_path.joinpath(*WORDS)
    bare = ["script=tell.py", "amp=o0", "train.bare=true", "require_proof=false", "workdir=run", f"env.TAG={tag}"]
    _, run = launch(project, root, *bare, "--", *words)
    log = (run / "attempts" / "1" / "stdout.log").read_text()
    assert log == f"told {[*words, tag, str(run / 'work')]!r}\n"
    assert list((run / "telemetry").glob("1-0.host.csv"))


@pytest.mark.parametrize(
    ("last", "throughput"),
    [
        ("print('log (hooks.py:70) Average total_ips: 393.49')", {"unit": "samples/s", "mean": 393.49}),
        ("print('Average total_ips: nan')", {"why": "no number follows train.rate in its output"}),
        ("", {"why": "no number follows train.rate in its output"}),
    ],
)
def test_the_rate_that_a_bare_script_prints_last_is_its_throughput(project, root, last, throughput):
    first = "print('Average total_ips: 7')\n" if "393" in last else ""
    (project / "tell.py").write_text(f"{first}print('total_ips: 9')\n{last}\n")
    bare = ["script=tell.py", "amp=o0", "train.bare=true", "require_proof=false", "train.rate=Average total_ips:"]
    printed, run = launch(project, root, *bare)
    assert json.loads((run / "result.json").read_text())["throughput"] == throughput
    shown = "393.5 samples/s" if "mean" in throughput else f"not known: {throughput['why']}"
    assert f"throughput {shown}\n" in re.sub(" +", " ", printed)


@pytest.mark.slow
def test_of_two_ranks_the_traceback_of_the_one_that_failed_first_is_shown(project, root):
    (project / "train.py").write_text(
        "import os\nfrom torch import distributed\ndistributed.init_process_group('gloo')\n"
        "def check(label):\n    raise ValueError(f'a bad label {label}')\n"
        "if os.environ['RANK'] == '1':\n    check(7)\n"
        "distributed.barrier()\n"
    )
    words = ("script=train.py", "train.processes=2", "gpus=0", "require_proof=false")
    printed, _ = launch(project, root, *words, code=1)
    assert "on rank 1, ValueError: a bad label 7" in printed
    _, _, end = printed.partition("the end of the traceback of rank 1:")
    assert "check(7)" in end
    assert "ChildFailedError" not in end and "runpy" not in end
