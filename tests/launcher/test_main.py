"""The command line as a person meets it: exit codes, one line for an error, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from amp_launcher.typed import plain
from launcher.__main__ import main
from launcher.commands import VERBS
from launcher.commands.completion import candidates
from launcher.runs import remote_record, run_roots, store
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from tests.launcher.hosts import LAPTOP
from tests.launcher.terminal import Terminal

BAD = [
    ["amp=o9"],
    ["bach=3"],
    ["plam"],
    ["batch=127", "accumulate=2"],
    ["xla=true"],
    ["framework=tensorflow", "amp=o0", "xla=true", "deterministic=true"],
    ["amp=o0", "amp.dtype=float16"],
    ["amp.allow=[conv2d]", "amp.deny=[conv2d]"],
    ["amp=o1", "amp.deny=[conv9d]"],
    ["visible_gpus=[99]"],
    ["gpus=99"],
    ["data=mnist"],
    ["data=mnist", "data.dir=/"],
    ["run_root=/proc/nowhere"],
    ["name=a\nb"],
    ["--frobnicate"],
    ["--config-dir", "/nowhere"],
    ["plan", "--facts", "/nowhere.json"],
    ["train.lr=fast"],
    ["resume"],
    ["rm"],
    ["ls", "nothing"],
    ["resume", "nothing"],
    ["resume", "--bogus"],
    ["compare", "amp=o1"],
    ["compare", "seed=1,2"],
    ["compare", "amp=o0,o1", "steps=5"],
    ["compare", "amp=o0,o1", "compare.rouds=3"],
]


def exit_code(words):
    try:
        return main(words)
    except SystemExit as ended:  # of argparse
        return int(ended.code or 0)


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_mistake_is_one_line_exit_2_and_leaves_nothing(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert exit_code(words) == 2
    message = capsys.readouterr().err
    assert message.strip() and "Traceback" not in message
    assert not (tmp_path / "launcher-runs").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:surrogateescape"])
def test_what_the_encoding_of_the_terminal_lacks_is_a_question_mark(encoding, tmp_path):
    for name in ("20260102-030405-calm-lake", "20260102-030406-brave-otter"):
        (tmp_path / name).mkdir()
        store.write_json(tmp_path / name / "result.json", {"throughput": {"unit": "samples/s", "mean": 100.0}})
    command = [sys.executable, "-m", "launcher", "report", "calm", "brave", f"run_root={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"??????  100 samples/s (1.00x)" in ended.stdout


def test_a_run_root_whose_name_is_no_text_is_listed(tmp_path):
    root = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(root)
    command = [sys.executable, "-m", "launcher", "ls", b"run_root=" + root]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == b"no runs in " + root.replace(b"\xff", b"?") + b"\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_help(verb, capsys):
    texts = []
    for words in ([verb, "--help"], ["help", verb]):
        assert exit_code(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "python -m launcher" in texts[0]


def test_completion_imports_no_hydra():
    text = "import sys; from launcher.__main__ import main; main(['-sc', 'query=bash']); print(*sys.modules)"
    environment = {**os.environ, "COMP_LINE": "python -m launcher amp="}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment)
    levels = [line for line in done.stdout.splitlines() if line.startswith("amp=o")]
    assert levels == ["amp=o0", "amp=o1", "amp=o2", "amp=o3"]
    assert not {"hydra", "omegaconf", "yaml"} & set(done.stdout.split())


def test_a_plan_imports_nothing_of_searches_experiments_and_scripts():
    text = "import sys; from launcher.__main__ import main; main(['plan', 'amp=o2']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    parts = ("search.space", "compare.experiments", "code.user_code", "plan.model", "ui.ended_runs")
    imported = {name for name in parts if f"launcher.{name}" in done.stdout.split()}
    assert imported == {"plan.model"}
    assert not {"hydra", "omegaconf", "submitit", "logging", "difflib", "platform"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("python -m launcher ba", ["batch="]),
        ("python -m launcher veri", ["verify", "verify.record="]),
        ("python -m launcher chain wait_g", ["wait_gpus="]),
        ("python -m launcher chain night", ["nightly.yaml"]),
        ("python -m launcher loss_scale=d", ["loss_scale=dynamic"]),
        ("amp-launcher train.l", ["train.lr="]),
        ("amp-launcher recipe=simplenet train.l", ["train.layers=", "train.lr="]),
        ("python -m launcher amp=o1 compile=", ["compile=false", "compile=true"]),
        ("python -m launcher amp.dtype=f", ["amp.dtype=float16"]),
        ("python script.py a", []),
        ("python -m launcher compare compare.r", ["compare.rounds="]),
        ("python -m launcher experiment=alcf_gan sca", ["scale="]),
        ("python -m launcher doctor cluster=sl", ["cluster=slurm"]),
        ("python -m launcher shell wait_g", ["wait_gpus="]),
        ("python -m launcher wai", ["wait=", "wait_gpus="]),
        ("amp-launcher sear", ["search.", "search="]),
        ("amp-launcher run search=opt", ["search=optuna"]),
        ("amp-launcher search=optuna search.p", ["search.parallel=", "search.prune="]),
        ("amp-launcher search.best=", ["search.best=auto", "search.best=lowest", "search.best=highest"]),
        ("amp-launcher search.prune=t", ["search.prune=true"]),
        ("amp-launcher compare sear", []),
        ("python -m launcher logs inter", ["inter-lake"]),
        ("python -m launcher resume 20260101-000000-i", ["20260101-000000-inter-lake"]),
        ("python -m launcher resume inter-lake epo", ["epochs="]),
        ("amp-launcher shell inter", ["inter-lake"]),
        ("amp-launcher up wait_g", ["wait_gpus="]),
        ("amp-launcher cmd wait_g", ["wait_gpus="]),
        ("amp-launcher amp=o1,o", ["amp=o1,o0", "amp=o1,o2", "amp=o1,o3"]),
        ("amp-launcher cluster.host=lab", ["cluster.host=lab-1", "cluster.host=lab-2", "cluster.host=lab-3"]),
        ("amp-launcher cluster.host=me@lab-1", ["cluster.host=me@lab-1"]),
        ("amp-launcher cluster.host=me@203", ["cluster.host=me@203.0.113.7:52013"]),
        ("amp-launcher image ", ["list", "pull", "render", "show"]),
        ("amp-launcher image render inter", ["interactive"]),
        ("amp-launcher image pull ngc-pytorch con", ["container.cache=", "container="]),
        ("amp-launcher image show ngc-pytorch:25.06", ["ngc-pytorch:25.06"]),
        ("amp-launcher image bogus ", []),
        ("amp-launcher ls --", ["--all", "--best", "--csv", "--help", "--json", "--sort"]),
        ("amp-launcher ls run_root=/tmp --j", ["--json"]),
        ("amp-launcher logs some-run -", ["--attempt", "--follow", "--help", "--lines"]),
        ("amp-launcher --c", ["--cfg", "--config-dir"]),
        ("amp-launcher plan amp=o1 --f", ["--facts"]),
        ("amp-launcher compare --", ["--cfg", "--config-dir", "--help", "--plan"]),
        ("amp-launcher shell --ss", ["--ssh-config"]),
        ("amp-launcher image render --", ["--help"]),
        ("amp-launcher train.py -- --", []),
        ("amp-launcher train.py -- amp=o", []),
    ],
)
def test_completion_offers_verbs_keys_flags_choices_runs_and_images(line, offers, tmp_path, monkeypatch):
    (tmp_path / "nightly.yaml").touch()
    monkeypatch.chdir(tmp_path)
    store.create(tmp_path, "20260101-000000-inter-lake")
    run_roots.remember(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/more").mkdir(parents=True)
    (tmp_path / ".ssh/config").write_text("Include more/*\nhost lab-1 lab-* !lab-9\n  User x\nHost=lab-2\n")
    (tmp_path / ".ssh/more/one").write_text('Include config\nHost "lab-3" # Host lab-4\n')
    remote_record.create("20260101-000000-far-away", Pointer(Address("me@203.0.113.7:52013"), "/runs", "token"))
    assert candidates(line) == offers


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("amp-launcher amp=o", ["o0", "o1", "o2", "o3"]),
        ("amp-launcher image show ngc-pytorch:25.0", ["25.0"]),
        ("amp-launcher compi", ["compile="]),
    ],
)
def test_completion_in_a_real_bash_changes_nothing_else(line, replies):
    """Replies are what readline puts behind the last word break, of which `=` and `:` are two."""
    text = f"""
      amp-launcher() {{ "{sys.executable}" -m launcher "$@"; }}
      before=$COMP_WORDBREAKS
      complete -W mine python
      eval "$(amp-launcher -sc install=bash)"
      COMP_LINE=$1 COMP_POINT=${{#1}}; _launcher_complete 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}"
      [ "$before" = "$COMP_WORDBREAKS" ] || echo changed
      complete -p python python3 amp-launcher
    """
    done = subprocess.run(["bash", "-c", text, "bash", line], capture_output=True, text=True)
    *offered, python, own = done.stdout.splitlines()
    assert python == "complete -W 'mine' python"
    assert own.endswith("_launcher_complete amp-launcher")
    assert "python3: no completion specification" in done.stderr
    assert offered
    assert all(offer.startswith(reply) for offer, reply in zip(offered, replies, strict=len(replies) > 1)), offered


def have_a_host_and_a_run(home):
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text("Host lab-one\n")
    store.create(home / "runs", "20260101-000000-inter-lake")
    run_roots.remember(home / "runs")


def test_completion_at_the_prompt_of_a_real_bash(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/inner.py").touch()
    have_a_host_and_a_run(tmp_path)
    variables = {**os.environ, "PYTHONPATH": str(Path(launcher.__file__).parents[1]), "HOME": str(tmp_path)}
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], {**variables, "TERM": "xterm", "PS1": "% "})
    asked = f"'{sys.executable}' -m launcher"
    shell.type(f'cd {tmp_path}; amp-launcher() {{ [ "$1" != -sc ] && echo "<$*>" || {asked} "$@"; }}')
    shell.ask('eval "$(amp-launcher -sc install=bash)"')
    for keys, shown in (
        ("comp\t\t", r"compare\s+compile="),
        ("compare amp=o1,o\t\t", r"o1,o0\s+o1,o2\s+o1,o3"),
        ("framew\tten\t\n", "<framework=tensorflow>"),
        ("cluster.ho\tme@la\t\n", "<cluster.host=me@lab-one>"),
        ("logs int\t\n", "<logs inter-lake>"),
        ("shell int\t\n", "<shell inter-lake>"),
        ("report inter-lake --ht\tsu\tinn\t\n", "<report inter-lake --html sub/inner.py>"),
        ("image show ngc-pytorch:25.06\t\n", "<image show ngc-pytorch:25.06>"),
        ("script=su\tinn\t\n", "<script=sub/inner.py>"),
    ):
        shell.press(f"amp-launcher {keys}".encode())
        shell.expect(shown)
        shell.press(b"\x15")
    shell.type("exit")
    assert "not found" not in shell.all_shown()


@pytest.mark.skipif(shutil.which("fish") is None, reason="the shell fish is not installed")
@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("amp-launcher sub/", "sub/inner.py"),
        ("amp-launcher script=sub/", "script=sub/inner.py"),
        ("amp-launcher amp=o", "amp=o2"),
        ("amp-launcher cluster.host=me@la", "cluster.host=me@lab-one"),
        ("amp-launcher logs int", "inter-lake"),
    ],
)
def test_completion_in_a_real_fish_offers_files_too(line, offer, tmp_path):
    have_a_host_and_a_run(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "inner.py").touch()
    text = f"""
      function amp-launcher; "{sys.executable}" -m launcher $argv; end
      amp-launcher -sc install=fish | source
      complete -C $argv[1]
    """
    variables = {**os.environ, "PYTHONPATH": str(Path(launcher.__file__).parents[1]), "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", text, line], capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert offer in done.stdout.split(), done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="the shell zsh is not installed")
def test_completion_in_a_real_zsh_leaves_no_space_behind_a_key_and_offers_files_too(tmp_path):
    have_a_host_and_a_run(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "inner.py").touch()
    variables = {**os.environ, "PYTHONPATH": str(Path(launcher.__file__).parents[1]), "HOME": str(tmp_path)}
    shell = Terminal(["zsh", "-f", "-i"], {**variables, "TERM": "xterm", "PS1": "% "})
    shell.type(f"cd {tmp_path}; autoload -Uz compinit && compinit -u -D; PS1='ready> '")
    shell.type(f"amp-launcher() {{ {sys.executable} -m launcher $@ }}; source <(amp-launcher -sc install=zsh)")
    shell.ask(":")
    for keys, shown in (
        ("plan framew\ttorch", "framework=torch"),
        ("amp=o\t", r"amp=o0\s+amp=o1\s+amp=o2\s+amp=o3"),
        ("script=su\t", "script=sub/"),
        ("cluster.host=me@la\t", "cluster.host=me@lab-one"),
        ("logs int\t", "logs inter-lake"),
    ):
        shell.press(f"amp-launcher {keys}".encode())
        shell.expect(shown)
        shell.press(b"\x15")
    shell.type("exit")
    assert "not found" not in shell.all_shown()


def test_cfg_job_prints_the_composed_configuration(capsys):
    assert main(["--cfg", "job", "amp=o2", "env.V=1.10", "-m"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["amp:", "  level: o2"]


def test_plan_names_the_origin_of_each_setting(capsys, tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("kind: local\nsetup: [ulimit -c 0]\n")
    assert main(["plan", "--all", "amp=o2", "batch=64", "cluster=mine", "--config-dir", str(tmp_path)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")}
    assert rows["amp.level"].endswith("conf/amp/o2.yaml")
    assert rows["batch"].endswith("command line: batch=64")
    assert rows["cluster.setup"].endswith(f"{tmp_path}/cluster/mine.yaml")
    assert rows["accumulate"].endswith("default")


def test_plan_fits_a_screen_and_names_what_is_not_the_default(capsys):
    assert main(["plan", "amp=o2", "batch=64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and lines[0].startswith("mnist in torch at o2 (half_model_fp32_masters), bfloat16")
    keys = [line.split()[0] for line in lines if line]
    assert {"amp.level", "batch", "folder", "command"} <= set(keys)
    assert not {"accumulate", "loss_scale.init", "container.kind"} & set(keys)
    assert lines[-1] == "`plan --all` lists every setting, `plan --script` prints run.sh"


def test_plan_prints_the_script_on_demand(capsys):
    assert main(["plan", "--script", "amp=o2"]) == 0
    out = capsys.readouterr().out
    assert "#!/usr/bin/env bash" in out and out.rstrip().endswith("`plan --all` lists every setting")
    assert main(["run", "--script", "amp=o2"]) == 2


def test_plan_replays_recorded_facts(capsys, tmp_path):
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(plain(LAPTOP)))
    assert main(["plan", "amp=o2", "--json", "--facts", str(recorded)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["facts"] == plain(LAPTOP)
    (plan,) = printed["plans"]
    assert (plan["host"], plan["code"]) == (LAPTOP.host, LAPTOP.code.digest)
    recorded.write_text(json.dumps(printed))
    assert main(["plan", "amp=o2", "--json", "--facts", str(recorded)]) == 0
    assert json.loads(capsys.readouterr().out)["plans"] == [plan]


def test_plan_starts_and_writes_nothing(tmp_path):
    assert main(["plan", "amp=o0,o1", f"run_root={tmp_path}/runs"]) == 0
    assert not (tmp_path / "runs").exists()


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -m launcher run --help | head -n 1'],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["ls"], 0), (["--config-dir", "sites", "plan"], 0), (["amp=o0"], 141), (["train.py", "--", "report"], 141)],
)
def test_without_a_reader_a_run_has_no_good_end(words, code, monkeypatch, capfd):
    def writes(_):
        raise BrokenPipeError

    monkeypatch.setattr("launcher.__main__._dispatch", writes)
    monkeypatch.setattr("sys.stdout", os.fdopen(os.dup(1), "w"))
    assert main(words) == code


def test_a_folder_of_files_may_stand_before_the_verb(tmp_path, capsys):
    assert main(["--config-dir", str(tmp_path), "plan", "amp=o2"]) == 0
    assert capsys.readouterr().out.startswith("mnist in torch at o2 ")


def test_interrupted_while_planning_is_130_without_a_traceback(monkeypatch, capsys):
    def interrupt(_, make):
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.commands.plan.probe_each", interrupt)
    assert main(["plan"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_at_its_end_python_does_not_look_for_garbage_among_what_was_imported() -> None:
    code = (
        "import atexit, gc; from launcher.__main__ import main\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"  # after what is registered later
        "main(['--version'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 100
