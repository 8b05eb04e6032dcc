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

from launcher.__main__ import main
from launcher.config.paths import conf_folder
from recipes.typed import plain, show
from recipes.values import read
from tests.launcher.hosts import LAPTOP, spec_of

CHECKOUT = str(conf_folder().parent)
# 10^12 values, each alias ten times the one before.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + index)}: &{chr(98 + index)} [{','.join(['*' + chr(97 + index)] * 10)}]\n" for index in range(12)
)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the words are refused with."""
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    return said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run_root=~nouser/x"], "~nouser/x: there is no home folder"),
        (["data=mnist", "data.dir=~nouser/x"], "no home folder"),
        (["secrets.A=~nouser/x"], "no home folder"),
        (["python=~nouser/python"], "no home folder"),
        (["recipe=script", "script=~nouser/a.py"], "no home folder"),
        (["container=docker", "image=~nouser/a.sif"], "no home folder"),
        (["container=docker", "image=x", "mounts=[~nouser/a:/b]"], "no home folder"),
        (["container=docker", "image=x", "container.cache=~nouser/a"], "no home folder"),
        (["--config-dir", "~nouser/x"], "no home folder"),
        (["--facts", "~nouser/x"], "no home folder"),
        (["seed=range(0,1,0)"], "has a step of 0"),
        (["train.lr=range(0,1,0)"], "has a step of 0"),
        (["seed=range(0,10,1e-999999)"], "has a step of 0"),
        (["seed=range(10,0,-1e-9999999)"], "has a step of 0"),
        (["seed=range(1e999999,2)"], "in numbers up to"),
        (["seed=range(1e9999999,2)"], "in numbers up to"),
        (["seed=range(0,-1e99999999999999999999)"], "in numbers up to"),
        (["~seed=[1],[2]"], "names several values"),
        (["~amp=o1,o2"], "names several values"),
        (["~amp"], "amp can't be left out"),
        ([f"seed={'9' * 5000}"], "seed has 5000 digits, more than can be read"),
        (["cluster.setup={a:b}"], "should be a list"),
        (["recipe=script", "script=a.py", "--", "???", "${x}"], "there is no such file"),
        (
            ["train.lr=${x}"],
            "train.lr=${x}: interpolations are for configuration files; write the value (command line)",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, *words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"level: o2 # \xe9\n", "1: not UTF-8"),
        ("level: o2\n".encode("utf-16"), "1: not UTF-8"),
        ("deny: &a [*a]\nlevel: o1\n", "1: lists and mappings are nested more than 50 deep, or within themselves"),
        ("level: o1\ndeny: &a {b: *a}\n", "2: lists and mappings are nested"),
        (BOMB, " more than 10,000 values"),
        (f"deny: {'[' * 2000}{']' * 2000}\n", " lists and mappings are nested more than 50 deep"),
        (f"deny: {'{a: ' * 2000}1{'}' * 2000}\n", " lists and mappings are nested more than 50 deep"),
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
def test_files(text: str | bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "amp").mkdir()
    file = tmp_path / "amp" / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert f"error: {file}:{says}" in refusal(capsys, "--config-dir", str(tmp_path), "amp=mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("level: o1\ndtype: ${nothing}\n", "amp.dtype can't be resolved: Interpolation key 'nothing' not found"),
        ("level: o1\ndeny: [softmax, 5]\n", "amp.deny[1] is text, and YAML reads 5 as 5, a whole number: quote it"),
        ("level: o1\ndtype: half\n", "amp.dtype=half is not one of auto, float16, bfloat16"),
        ("level: o1\ndtype: ???\n", "amp.dtype is ??? in a configuration file: say amp.dtype=..."),
        ("level: o1\nallow: 5\n", "amp.allow=5 should be a list"),
    ],
)
def test_values_of_files_are_refused_with_their_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amp").mkdir()
    file = tmp_path / "amp" / "mine.yaml"
    file.write_text(text)
    said = refusal(capsys, "--config-dir", str(tmp_path), "amp=mine")
    assert says in said
    assert f"({file}:2)" in said
    assert "command line" not in said


def test_arguments_that_configurations_would_read_are_taken_as_typed() -> None:
    from launcher.config.request import compose, take_apart

    words = ["recipe=script", "script=a.py", "amp=o0,o1", "env.A=???", "name=run"]
    asked = compose(take_apart([*words, "--", "???", "${x}", "${name}", "--", "-m"]))
    assert [cell.config["arguments"] for cell in asked.cells] == [["???", "${x}", "${name}", "--", "-m"]] * 2
    assert asked.cells[0].config["env"] == {"A": "???"}


@pytest.mark.parametrize(
    "text",
    [
        "[--nice=100]",
        "[export A=1]",
        "[~/a:/b]",
        "[a&b:/c]",
        "[export A='x, y',module load x]",
        "[a[0],f(b,c)]",
        "[${x}]",
    ],
)
def test_items_of_lists_of_text_are_taken_as_typed(text: str) -> None:
    spec = spec_of("cluster=slurm", f"cluster.setup={text}")
    assert f"[{','.join(spec.launch.cluster.setup)}]" == text


def test_lists_sweep_and_lose_the_quotes_around_an_item() -> None:
    from launcher.config.parse import parse

    assert parse("amp.deny=[a,'b, c'],[]").values == (["a", "b, c"], [])
    assert parse("amp.deny=choice([a],[b])").values == (["a"], ["b"])


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)))
def test_a_list_is_read_as_it_is_shown(items: list[str]) -> None:
    assert read(show(items), tuple[str, ...], "key") == items


KEYS = """ amp ~amp +amp batch seed ~seed train.lr env.A env mounts amp.deny cluster.setup cluster data recipe name
checkpoint run_root x.y experiment loss_scale tf32"""
PARTS = """o1 1 range( choice( ) , [ ] { } : ' " \\ ${ ??? null = ~ ../ é glob(*) 1e999 - true $(id) interval(0,1)
@ a | #"""
TEXTS = st.lists(st.sampled_from([*PARTS.split(), " ", "\x1b", "\udcff"]), max_size=5).map("".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.tuples(st.sampled_from(["", *KEYS.split()]), TEXTS).map("=".join), min_size=1, max_size=2))
def test_whatever_is_typed(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(plain(LAPTOP)))
    code = main(["plan", "--facts", str(facts), *words])
    said = capsys.readouterr().err
    assert (code, said) == (0, "") or (code == 2 and said.count("\n") == 1 and said.startswith("error: ")), said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["amp=o0", "steps=2", "batch=64", "run_root=runs"], 2, "run_root contains bytes that are not UTF-8 text"),
        (["recipe=script", "script=a.py", "amp=o0"], 2, "workdir contains bytes that are not UTF-8"),
        (["ls", "run_root=."], 0, "no runs in"),
    ],
)
def test_a_folder_whose_name_is_no_text(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    with open(folder + b"/a.py", "w") as stream:
        stream.write("print('here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words, *([f"run_root={tmp_path}"] if "run_root" not in str(words) else [])],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": CHECKOUT},
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert (done.returncode, says in said) == (code, True), said
    assert "Traceback" not in said
    assert os.listdir(folder) == [b"a.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["plan", "recipe=script", "script=a.py", "lr=0.1"],
            "arguments of the script go after --: -- --lr 0.1",
        ),
        (["plan", "device=gpu"], "did you mean cuda?"),
        (["plan", "amp=bf16"], "amp=bf16 is not a mode; say amp=bf16-mixed, or amp=bf16-true"),
        (["plan", "amp=16-mixed"], "say amp=fp16-mixed ("),
        (["plan", "amp=off"], "say amp=o0 ("),
        (["plan", "amp.dtype=fp16"], "did you mean float16?"),
        (["plan", "loss_scale=128"], "loss_scale=128 is not a rule; say loss_scale=static loss_scale.init=128"),
        (["stop", "wise-oasis"], "stop is not a verb; say `cancel wise-oasis`"),
        (["kill", "x"], "say `cancel x`"),
        (["status"], "say `ls`"),
        (["plan", "cluster=ssh", "cluster.user=me"], "cluster.user is not a key; say cluster.host=me@host"),
        (["plan", "batch=0"], "batch=0 must be at least 1 (command line)"),
        (["plan", "recipe=gan", "data=digits", "batch=-5"], "batch=-5 must be at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_get_their_right_answer(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_typo_in_an_experiments_comparison_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("arms:\n  - {name: a, words: [amp=o0]}\n  - {name: b, words: [amp=o1]}\ncompare: {roundz: 3}\n")
    said = refusal(capsys, "--config-dir", str(tmp_path), "experiment=mine")
    assert f"{file}:4: unknown key compare.roundz; did you mean compare.rounds?" in said
