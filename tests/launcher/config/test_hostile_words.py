"""Words and files that nobody would write: one line and exit 2 each, or taken as typed, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_launcher.typed import plain
from launcher.__main__ import main
from launcher.config.paths import conf_folder
from launcher.config.request import compose, split_flags
from tests.launcher.config.conftest import Refusal
from tests.launcher.hosts import LAPTOP

CHECKOUT = str(conf_folder().parent)
# 10^12 values, each alias ten times the one before.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + index)}: &{chr(98 + index)} [{','.join(['*' + chr(97 + index)] * 10)}]\n" for index in range(12)
)
DEEP = " lists and mappings are nested more than 50 deep"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"level: o2 # \xe9\n", "1: not UTF-8"),
        ("level: o2\n".encode("utf-16"), "1: not UTF-8"),
        ("deny: &a [*a]\nlevel: o1\n", f"1:{DEEP}, or within themselves"),
        ("level: o1\ndeny: &a {b: *a}\n", f"2:{DEEP}"),
        (f"deny: {'[' * 2000}{']' * 2000}\n", DEEP),
        (f"deny: {'{a: ' * 2000}1{'}' * 2000}\n", DEEP),
        (BOMB, " more than 10,000 values"),
        ("#" * 300_000, " more than 256 KiB"),
        ("defaults: 5\nlevel: o1\n", "1: defaults should be a list"),
        ("level: o1\ndefaults: {a: b}\n", "2: defaults should be a list"),
        ("defaults: [5]\n", "1: each item of defaults"),
        ("defaults: [{a: {b: c}}]\n", "1: each item of defaults"),
        ("# @package ..\nlevel: o1\n", "1: # @package .. names no place"),
        ("\n# @package a b\nlevel: o1\n", "2: # @package a b names no place"),
        ("# @package a[0]\nlevel: o1\n", "1: # @package a[0] names no place"),
        ("# @package\nlevel: o1\n", "1: # @package names no place"),
        ("[1,2]\n", "1: a configuration file holds keys"),
        ("1\n", "1: a configuration file holds keys"),
        ("a: 1\n---\nb: 2\n", "2: can't be read as YAML: expected a single document"),
        ("level: o1\nlevel: o2\n", "2: can't be read as YAML: while constructing a mapping found duplicate key"),
        ("level: o1\ndeny: [a\n", "2: can't be read as YAML"),
        ("level: !!python/object:os.system x\n", "1: can't be read as YAML"),
        ("level: o1\n? [1,2]\n: 2\n", "2: a key should be text"),
        ("1: 2\n", " the key 1 is no text"),
        (f"level: {'9' * 5000}\n", " Exceeds the limit (4300 digits)"),
        ("level: o1\ndtype: ${\n", "2: no viable alternative at input '${'"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_line(
    text: str | bytes, says: str, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "amp").mkdir()
    file = tmp_path / "amp" / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert f"error: {file}:{says}" in refusal("plan", "--config-dir", str(tmp_path), "amp=mine")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dtype: ${nothing}", "amp.dtype can't be resolved: Interpolation key 'nothing' not found"),
        ("deny: [softmax, 5]", "amp.deny[1] is text, and YAML reads 5 as 5, a whole number: quote it"),
        ("dtype: half", "amp.dtype=half is not one of auto, float16, bfloat16"),
        ("dtype: [half]", "amp.dtype=[half] is not one of auto, float16, bfloat16"),
        ("dtype: ???", "amp.dtype is ??? in a configuration file: say amp.dtype=..."),
        ("allow: 5", "amp.allow=5 should be a list"),
    ],
)
def test_values_of_files_are_refused_with_their_line(line: str, says: str, tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "amp").mkdir()
    file = tmp_path / "amp" / "mine.yaml"
    file.write_text(f"level: o1\n{line}\n")
    message = refusal("plan", "--config-dir", str(tmp_path), "amp=mine")
    assert says in message and f"({file}:2)" in message and "command line" not in message


def test_a_typo_in_an_experiments_comparison_is_named_with_its_line(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("arms:\n  - {name: a, words: [amp=o0]}\n  - {name: b, words: [amp=o1]}\ncompare: {roundz: 3}\n")
    message = refusal("plan", "--config-dir", str(tmp_path), "experiment=mine")
    assert f"{file}:4: unknown key compare.roundz; did you mean compare.rounds?" in message


def test_arguments_that_configurations_would_read_are_taken_as_typed() -> None:
    words = ["recipe=script", "script=a.py", "amp=o0,o1", "env.A=???", "name=run"]
    composed = compose(split_flags([*words, "--", "???", "${x}", "${name}", "--", "-m"]))
    assert [cell.config["arguments"] for cell in composed] == [["???", "${x}", "${name}", "--", "-m"]] * 2
    assert composed[0].config["env"] == {"A": "???"}


KEYS = """ amp ~amp +amp batch seed ~seed train.lr env.A env mounts amp.deny cluster.setup cluster data recipe name
checkpoint run_root x.y experiment loss_scale tf32"""
PARTS = """o1 1 range( choice( ) , [ ] { } : ' " \\ ${ ??? null = ~ ../ é glob(*) 1e999 - true $(id) interval(0,1)
@ a | #"""
TEXTS = st.lists(st.sampled_from([*PARTS.split(), " ", "\x1b", "\udcff"]), max_size=5).map("".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.tuples(st.sampled_from(["", *KEYS.split()]), TEXTS).map("=".join), min_size=1, max_size=2))
def test_whatever_is_typed_is_planned_or_refused_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(plain(LAPTOP)))
    code = main(["plan", "--facts", str(facts), *words])
    errors = capsys.readouterr().err
    refused = code == 2 and errors.count("\n") == 1 and errors.startswith("error: ")
    assert (code, errors) == (0, "") or refused, errors


@pytest.mark.parametrize(
    ("name", "words", "code", "says"),
    [
        (b"\xff", "amp=o0 steps=2 batch=64 run_root=runs", 2, "run_root contains bytes that are not UTF-8 text"),
        (b"\xff", "recipe=script script=a.py amp=o0 run_root=/tmp", 2, "workdir contains bytes that are not UTF-8"),
        (b"\xff", "ls run_root=.", 0, "no runs in"),
        (b"a\nb", "plan run_root=runs", 2, "control character"),
        (b"a", b"plan run_root=/tmp/\xff", 2, "not UTF-8 text"),
    ],
)
def test_a_name_that_is_no_text_or_breaks_a_line_is_refused(
    name: bytes, words: str | bytes, code: int, says: str, tmp_path: Path
) -> None:
    folder = os.fsencode(tmp_path) + b"/" + name
    os.mkdir(folder)
    with open(folder + b"/a.py", "w") as stream:
        stream.write("print('here')\n")
    argv = [sys.executable, "-m", "launcher", *words.split()]
    ended = subprocess.run(argv, capture_output=True, cwd=folder, env={**os.environ, "PYTHONPATH": CHECKOUT})
    screen = (ended.stdout + ended.stderr).decode(errors="replace")
    assert (ended.returncode, says in screen, "Traceback" in screen) == (code, True, False), screen
    assert os.listdir(folder) == [b"a.py"]


def test_a_plan_is_printed_without_what_a_terminal_acts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value may hold it, and so may a name of a file that is left out."""
    for name in ("train.py", "a\x9b31m.pem", "b\x1b]0;owned\x07.pt"):
        (tmp_path / name).write_text("")
    os.truncate(tmp_path / "b\x1b]0;owned\x07.pt", 2**21)
    monkeypatch.chdir(tmp_path)
    words = [
        "plan",
        "train.py",
        "framework=torch",
        "amp=o0",
        "device=cpu",
        "train.bare=true",
        "require_proof=false",
        "env.A=a\u202eb",
        "--",
        "x\u2066y",
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.count("left out of") == 2
    assert shown.replace("\n", "").isprintable(), ascii(shown)


def test_recorded_facts_that_lack_what_is_asked_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(plain(LAPTOP)))
    for words, what in ((["cluster=slurm"], "Slurm"), (["container=docker", "image=x"], "containers")):
        assert f"holds nothing about {what}" in refusal("plan", "--facts", str(recorded), *words)


def test_a_closed_stdout_is_no_error() -> None:
    argv = ["bash", "-c", f'"{sys.executable}" -m launcher run --help >&-']
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT)
    assert (ended.returncode, ended.stderr) == (0, "")
