"""Configuration of a user's own that holds without a flag."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_launcher.typed import plain
from launcher.__main__ import main
from launcher.commands.completion import candidates
from launcher.config.paths import conf_folder
from tests.launcher import warm
from tests.launcher.config.conftest import Refusal
from tests.launcher.hosts import LAPTOP
from tests.launcher.run_folders import launcher

Config = Callable[..., set[str]]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "amp-launcher"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def config(capsys: pytest.CaptureFixture[str]) -> Config:
    """The lines of the configuration that words compose, without their indent."""

    def shown(*words: str) -> set[str]:
        code = main(["plan", "--cfg", "job", *words])
        screen = capsys.readouterr()
        assert code == 0, screen.err
        return {line.strip() for line in screen.out.splitlines()}

    return shown


def test_its_values_and_choices_hold_unless_words_say_otherwise(own: Path, config: Config) -> None:
    (own / "config.yaml").write_text("amp: o2\ndefaults:\n  - cluster: slurm\ncluster: {account: ml}\nbatch: 256\n")
    assert config() > {"level: o2", "account: ml", "batch: 256"}
    assert config("amp=o0", "batch=64") > {"level: o0", "batch: 64"}


def test_merged_keys_are_weaker_than_the_own_ones_and_than_earlier_mappings(own: Path, config: Config) -> None:
    (own / "config.yaml").write_text("<<: [{amp: o1, batch: 256}, {amp: o2, seed: 5}]\nbatch: 64\n")
    assert config() > {"level: o1", "batch: 64", "seed: 5"}


def test_what_a_file_leaves_open_is_as_a_weaker_one_has_it(
    own: Path, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    write(own, {"config.yaml": "batch: 256\n"})
    write(tmp_path, {"config.yaml": "batch: ???\n"})
    assert config() > {"batch: 256"}


def test_a_value_is_taken_back_as_the_file_writes_it(own: Path, config: Config, refusal: Refusal) -> None:
    (own / "config.yaml").write_text('name: "n-${nope}"\n')
    assert "~name=foo: files set it to n-${nope}" in refusal("plan", "~name=foo")
    assert "nope" not in str(config("~name=n-${nope}"))


def test_what_the_job_at_hand_has_no_key_for_is_left_out(own: Path, config: Config) -> None:
    (own / "config.yaml").write_text(
        "batch: 256\nimage: ngc-pytorch\ncluster: {account: ml, setup: [module load x]}\ntrain: {lr: 0.1}\n"
        "container: {ipc: private}\nprofile: {steps: 3}\n"
    )
    lines = config("recipe=script", "script=a.py")
    assert not {"batch", "image", "account", "lr", "ipc", "steps"} & {line.strip().partition(":")[0] for line in lines}
    assert "- module load x" in lines


def test_a_file_that_is_chosen_wins_and_is_a_choice_of_help_and_completion(
    own: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    write(own, {"config.yaml": "cluster: {account: ml, qos: low}\n", "cluster/big.yaml": "kind: slurm\naccount: big\n"})
    (own / "cluster/folder.yaml").mkdir()
    (own / "cluster/.yaml").touch()
    assert config("cluster=big") > {"account: big", "qos: low"}
    assert candidates("amp-launcher cluster=b") == ["cluster=big"]
    assert main(["run", "--help"]) == 0
    assert "cluster=big|local|slurm|ssh" in capsys.readouterr().out


def test_the_plan_names_the_file_of_each_value(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(group))
    write(own, {"config.yaml": "amp: o2\nbatch: 256\nseed: 3\n"})
    write(group, {"config.yaml": "seed: 4\n", "facts.json": json.dumps(plain(LAPTOP))})
    assert main(["plan", "--facts", str(group / "facts.json"), "accumulate=1"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    assert rows["batch"].split()[1:] == ["256", f"{own}/config.yaml"]
    assert str(group / "config.yaml") in rows["seed"]
    assert f"chosen in {own}/config.yaml:1" in rows["amp.level"]
    assert rows["accumulate"].endswith("command line: accumulate=1"), "typed, although it is the default"


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
        ("amp: [o0, o1]\n", "amp: [o0,o1] should be one name, or keys; a sweep is typed, as amp=a,b"),
        ("amp: 3\n", "amp: 3 should be one name"),
        ("recipe: [gpt]\n", "recipe: [gpt] should be one name"),
        ("telemetry.every: 3\n", "telemetry.every is a key of a group: write `telemetry: {every: ...}`"),
        ('cluster: {time: "1",\n  stop_before: 60}\n', "or say a smaller cluster.stop_before"),
        ("python: /nowhere/python\n", "python=/nowhere/python can't be run on"),
        ("data: {name: mnist, dir: /nowhere}\n", "data.dir=/nowhere is not a folder"),
        ("lr: 0.1\n", "unknown key lr; did you mean train.lr?"),
        ("time: 1\n", "unknown key time; did you mean cluster.time?"),
        ('batch: "256"\n', "batch=256 should be a whole number, without quotes"),
        ('compile: "true"\n', "compile=true should be true or false, without quotes"),
    ],
)
def test_its_mistakes_are_named_with_their_line(text: str, says: str, own: Path, refusal: Refusal) -> None:
    (own / "config.yaml").write_text(text)
    message = refusal("plan")
    assert says in message and f"{own}/config.yaml:1" in message


def test_a_cluster_of_ones_own_names_its_kind(own: Path, refusal: Refusal) -> None:
    write(own, {"cluster/here.yaml": "stop_before: 60\n"})
    message = refusal("plan", "cluster=here")
    assert f"{own}/cluster/here.yaml: names no kind of cluster: write `kind: ` and one of local, ssh, slurm" in message


def test_a_folder_that_is_named_and_none_is_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", "/nowhere")
    assert "LAUNCHER_CONFIG_DIR=/nowhere is not a folder" in refusal("plan")


def mine(part: str = "__init__") -> str:
    """A part of `simplenet` as a recipe of one's own."""
    return (conf_folder().parent / "recipes" / "simplenet" / f"{part}.py").read_text().replace("simplenet", "mine")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def launch(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return launcher(*words, state_home=tmp_path / "state")


def test_help_has_the_keys_of_a_recipe_of_ones_own(own: Path, tmp_path: Path) -> None:
    write(own, {"recipes/mine/__init__.py": mine(), "recipes/broken/__init__.py": "1 / 0\nRECIPE: int = 0\n"})
    screen = launch(tmp_path, "run", "--help").stdout
    assert "\nkeys of recipe=mine (batch=2048, epochs=2 unless named):\n  data=synthetic" in screen
    assert "\nrecipe=broken can't be imported: ZeroDivisionError" in screen


def test_a_file_of_a_recipe_or_an_experiment_has_the_keys_of_the_whole_job(own: Path, config: Config) -> None:
    write(own, {"recipe/fast.yaml": "recipe: mnist\ntrain: {lr: 2.5}\n", "experiment/short.yaml": "steps: 3\n"})
    assert config("recipe=fast", "experiment=short") > {"recipe: mnist", "lr: 2.5", "steps: 3"}


def test_a_recipe_that_lies_where_recipes_did_is_told_where_they_do(own: Path, tmp_path: Path) -> None:
    write(own, {"recipe/mine.yaml": "recipe: mine\n", "recipes/mine.py": "from recipes.recipe import Recipe\n"})
    told = launch(tmp_path, "plan", "recipe=mine").stderr
    assert f"move {own}/recipes/mine.py to mine/__init__.py there, torch_/mine.py to mine/train_torch.py" in told


def test_half_a_recipe_of_ones_own_is_refused_with_what_it_lacks(own: Path, tmp_path: Path) -> None:
    write(own, {"recipes/mine/__init__.py": mine()})
    lacks_its_file = "recipe=mine has no file recipe/mine.yaml beside recipes/; write one: `recipe: "
    assert lacks_its_file in launch(tmp_path, "plan", "recipe=mine").stderr
    write(own, {"recipe/mine.yaml": "train: {lr: 1.0}\n"})
    lacks_its_name = "/recipe/mine.yaml: names no recipe: write `recipe: mine`, or"
    assert lacks_its_name in launch(tmp_path, "plan", "recipe=mine").stderr


def test_a_recipe_of_ones_own_trains_is_proved_and_goes_on(own: Path, tmp_path: Path) -> None:
    write(own, {"recipes/mine/__init__.py": mine(), "recipes/mine/train_torch.py": mine("train_torch")})
    write(own, {"recipe/mine.yaml": "recipe: mine\n"})
    words = ["recipe=mine", "amp=o1", "batch=16", "steps=3", "train.width=32", "telemetry.every=0"]
    words += ["env.OMP_NUM_THREADS=1", f"run_root={tmp_path}/runs", f"python={warm.python()}"]
    first = launch(tmp_path, *words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "proved: bfloat16" in first.stdout
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.name[:1].isdigit())
    (own / "recipes" / "mine" / "__init__.py").unlink()  # the run has its own copy
    again = launch(tmp_path, "resume", run.name, "steps=5", f"run_root={tmp_path}/runs")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "recipe=mine is not one of mnist" in launch(tmp_path, *words).stderr
    write(own, {"recipes/mine/__init__.py": "1 / 0\nRECIPE = None\n"})
    refused = launch(tmp_path, *words)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "recipe=mine can't be imported: ZeroDivisionError" in refused.stderr
