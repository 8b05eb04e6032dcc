"""Configuration of a user's own that holds without a flag."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands.completion import candidates
from launcher.config.paths import conf_folder
from recipes.typed import plain
from tests.launcher import warm
from tests.launcher.hosts import LAPTOP
from tests.launcher.run_folders import launcher


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "amp-launcher"
    folder.mkdir(parents=True)
    return folder


def config(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(["plan", "--cfg", "job", *words])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 2
    return capsys.readouterr().err


def test_its_values_and_choices_hold_unless_words_say_otherwise(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "config.yaml").write_text("amp: o2\ndefaults:\n  - cluster: slurm\ncluster: {account: ml}\nbatch: 256\n")
    assert "level: o2" in config(capsys)
    assert "account: ml" in config(capsys)
    assert "batch: 256" in config(capsys)
    assert "level: o0" in config(capsys, "amp=o0")
    assert "batch: 64" in config(capsys, "batch=64")


def test_merged_keys_are_weaker_than_the_own_ones_and_than_earlier_mappings(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "config.yaml").write_text("<<: [{amp: o1, batch: 256}, {amp: o2, seed: 5}]\nbatch: 64\n")
    shown = config(capsys)
    assert "level: o1" in shown and "batch: 64" in shown and "seed: 5" in shown


def test_a_value_is_taken_back_as_the_file_writes_it(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "config.yaml").write_text('name: "n-${nope}"\n')
    assert "~name=foo: files set it to n-${nope}" in refusal(capsys, "~name=foo")
    assert "nope" not in config(capsys, "~name=n-${nope}")


def test_what_the_job_at_hand_has_no_key_for_is_left_out(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "config.yaml").write_text(
        "batch: 256\nimage: ngc-pytorch\ncluster: {account: ml, setup: [module load x]}\ntrain: {lr: 0.1}\n"
    )
    here = config(capsys, "recipe=script", "script=a.py")
    assert not [each for each in ("batch", "image", "account", "lr:") if each in here]
    assert "module load x" in here


def test_a_file_that_is_chosen_knows_better(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "config.yaml").write_text("cluster: {account: ml, qos: low}\n")
    (own / "cluster").mkdir()
    (own / "cluster" / "big.yaml").write_text("kind: slurm\naccount: big\n")
    chosen = config(capsys, "cluster=big")
    assert "account: big" in chosen
    assert "qos: low" in chosen


def test_the_plan_names_the_file_of_each_value(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(group))
    (own / "config.yaml").write_text("amp: o2\nbatch: 256\nseed: 3\n")
    (group / "config.yaml").write_text("seed: 4\n")
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(plain(LAPTOP)))
    assert main(["plan", "--facts", str(facts)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    assert f"256  {own}/config.yaml" in " ".join(rows["batch"].split()).replace(" 256 ", " 256  ")
    assert str(group / "config.yaml") in rows["seed"]
    assert f"chosen in {own}/config.yaml:1" in rows["amp.level"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bach: 3\n", "unknown key bach; did you mean batch?"),
        ("amp: o9\n", "amp=o9 is not one of"),
        ("amp: {level: o2}\n", "amp.level follows from amp; say `amp: o2`"),
        ("defaults: [data: mnist]\n", "defaults may choose from amp"),
        ("<<: {defaults: [data: mnist]}\n", "defaults may choose from amp"),
        ("<<: {amp: {level: o2}}\n", "amp.level follows from amp; say `amp: o2`"),
        ("batch: many\n", "batch=many should be a whole number"),
        ("name: 1.10\n", "name is text, and YAML reads 1.10 as 1.1"),
        ("train: {lrr: 1}\n", "unknown key train.lrr"),
    ],
)
def test_its_mistakes_are_named_with_their_line(
    text: str, says: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "config.yaml").write_text(text)
    said = refusal(capsys)
    assert says in said
    assert f"{own}/config.yaml:1" in said
    assert said.count("\n") == 1


def test_a_folder_that_is_named_and_none_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", "/nowhere")
    assert "LAUNCHER_CONFIG_DIR=/nowhere is not a folder" in refusal(capsys)


def test_its_files_are_choices_of_help_and_completion(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "cluster").mkdir()
    (own / "cluster" / "big.yaml").write_text("kind: slurm\n")
    assert candidates("amp-launcher cluster=b") == ["cluster=big"]
    assert main(["run", "--help"]) == 0
    assert "cluster=big|local|slurm|ssh" in capsys.readouterr().out


RECIPES = conf_folder().parent / "recipes"


def mine(part: str) -> str:
    """A part of `simplenet` as a recipe of one's own."""
    return (RECIPES / part / "simplenet.py").read_text().replace("simplenet", "mine")


def launch(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return launcher(*words, state_home=tmp_path / "state")


def write(own: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)


def test_help_has_the_keys_of_a_recipe_of_ones_own(own: Path, tmp_path: Path) -> None:
    write(own, {"recipes/mine.py": mine(""), "recipes/broken.py": "1 / 0\nRECIPE: int = 0\n"})
    said = launch(tmp_path, "run", "--help").stdout
    assert "\nkeys of recipe=mine (batch=2048, epochs=2 unless named):\n  data=synthetic" in said
    assert "\nrecipe=broken can't be imported: ZeroDivisionError" in said


def test_a_file_of_a_recipe_or_an_experiment_has_the_keys_of_the_whole_job(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(own, {"recipe/fast.yaml": "recipe: mnist\ntrain: {lr: 2.5}\n", "experiment/short.yaml": "steps: 3\n"})
    assert {"recipe: mnist", "  lr: 2.5", "steps: 3"} <= set(
        config(capsys, "recipe=fast", "experiment=short").splitlines()
    )


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"recipes/mine.py": mine("")},
            "recipe=mine has no file recipe/mine.yaml beside recipes/; write one: `recipe: ",
        ),
        ({"recipe/mine.yaml": "train: {lr: 1.0}\n"}, "/recipe/mine.yaml: names no recipe: write `recipe: mine`, or"),
    ],
)
def test_half_a_recipe_of_ones_own_is_refused_with_what_it_lacks(
    files: dict[str, str], says: str, own: Path, tmp_path: Path
) -> None:
    write(own, files)
    assert says in launch(tmp_path, "plan", "recipe=mine").stderr


def test_a_recipe_of_ones_own_trains_is_proved_and_goes_on(own: Path, tmp_path: Path) -> None:
    write(
        own,
        {
            "recipes/mine.py": mine(""),
            "recipes/torch_/mine.py": mine("torch_"),
            "recipe/mine.yaml": "recipe: mine\n",
        },
    )
    words = ["recipe=mine", "amp=o1", "batch=16", "steps=3", "train.width=32", "telemetry.every=0"]
    words += ["env.OMP_NUM_THREADS=1", f"run_root={tmp_path}/runs", f"python={warm.python()}"]
    done = launch(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved: bfloat16" in done.stdout
    (run,) = (each for each in (tmp_path / "runs").iterdir() if each.name[:1].isdigit())
    (own / "recipes" / "mine.py").unlink()  # the run has its own copy
    again = launch(tmp_path, "resume", run.name, "steps=5", f"run_root={tmp_path}/runs")
    assert again.returncode == 0, again.stdout + again.stderr
    refused = launch(tmp_path, *words)
    assert "recipe=mine is not one of mnist" in refused.stderr
    (own / "recipes" / "mine.py").write_text("1 / 0\nRECIPE = None\n")
    refused = launch(tmp_path, *words)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "recipe=mine can't be imported: ZeroDivisionError" in refused.stderr
