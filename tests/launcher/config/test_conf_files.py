"""The files of `conf/`: equal to the settings classes, fit to be copied, and weaker than whatever is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.plan import is_chosen
from launcher.config import files
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.paths import conf_folder
from launcher.config.schema import defaults
from launcher.config.shipped import DECIDES, requests, top_level
from launcher.config.spec import JobSpec, make
from launcher.config.sweep import Cell, cells
from launcher.config.write_conf import files as written
from launcher.plan.provenance import origins
from launcher.plan.resolve import resolve
from recipes.precision.levels import MODES
from recipes.typed import leaves
from tests.launcher.hosts import LAPTOP, spec_of

PATHS = written()
CONF = sorted(conf_folder().rglob("*.yaml"))
OTHER: dict[str, tuple[Any, ...]] = {
    "framework": ("tensorflow", "paddle", "torch", "tensorflow"),
    "deterministic": (True, False, True, False),
    "tf32": (True, False, True, False),
    "parallel": ("ddp", "fsdp", "ddp", "fsdp"),
    "device": ("cpu", "cuda", "cpu", "cuda"),
    "checkpoint": ({"every": 1}, {"every": 2}, {"every": 3}, {"every": 4}),
    "proof": ({"share": 0.1}, {"share": 0.2}, {"share": 0.3}, {"share": 0.4}),
    "verify": ({"record": True}, {"record": False}, {"record": True}, {"record": True}),
    "telemetry": ({"every": 1}, {"every": 2}, {"every": 3}, {"every": 4}),
    "visible_gpus": ([1], [2], [3], [4]),
    "env": ({"A": "a"}, {"A": "b"}, {"A": "c"}, {"A": "d"}),
    "sweep": ({"A": "a"}, {"A": "b"}, {"A": "c"}, {"A": "d"}),
    "secrets": ({"A": "a"}, {"A": "b"}, {"A": "c"}, {"A": "d"}),
    "env_from": ("shell", "none", "shell", "shell"),
    "share": ("group", "none", "group", "group"),
}
"""Values of keys that take neither numbers nor any text, for four layers."""


def values(key: str, default: Any) -> tuple[Any, ...]:
    """Four values of a key, the first unlike its default."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(default, bool):
        return (not default, default, not default, not default)
    if isinstance(default, list):
        return (["a"], ["b"], ["c"], ["d"])
    if isinstance(default, int) or key in ("batch", "epochs", "steps", "gpus"):
        return (11, 12, 13, 14)
    return ("a", "b", "c", "d")


KEYS = {key: values(key, default) for key, default in top_level().items()}


def test_files_have_every_key_of_their_class_with_its_default_and_help() -> None:
    there = {str(path.relative_to(conf_folder()).with_suffix("")): path.read_text() for path in CONF}
    assert {path: text for path, text in there.items() if not path.startswith("experiment/")} == PATHS, (
        "run `make conf`"
    )


def test_a_default_is_no_request() -> None:
    for path in PATHS:
        asked = requests(path, files.read(conf_folder() / f"{path}.yaml"))
        group, _, name = path.partition("/")
        more = {"limits"} if name in ("docker", "podman") else set()
        if mode := MODES.get(name) if group == "amp" else None:
            if mode.tf32 is not None:
                assert asked == {"tf32": mode.tf32, "amp": {"level": "o0", "preset": name}}
                continue
            more = {"dtype", "preset"} if mode.gemm == "half" else {"dtype", "gemm", "preset"}
        assert asked.keys() == {DECIDES.get(group, "defaults")} | more, path


def of_job(spec: JobSpec) -> tuple[Any, ...]:
    return spec.training, spec.launch, spec.recipe


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("amp=o2", "loss_scale=tf", "amp.dtype=float16"),
        ("cluster=slurm", "cluster.account=ml"),
        ("container=docker", "image=x", "profile=nsys"),
        ("recipe=script", "script=a.py"),
        ("recipe=gan", "data=mnist", "data.dir=/x", "framework=tensorflow"),
        ("experiment=twcc_published_group2",),
        ("amp=fp32",),
        ("amp=bf16-true",),
    ],
    ids=" ".join,
)
def test_a_copy_of_all_files_changes_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(conf_folder(), copy)
    assert of_job(spec_of(*words, composer=Composer(config_dirs=[copy]))) == of_job(spec_of(*words))


@pytest.mark.parametrize(
    ("path", "old", "new", "word", "key", "value"),
    [
        ("config", "seed: 0", "seed: 7", "batch=64", "seed", 7),
        ("amp/o1", "deny: []", "deny: [conv2d]", "amp=mine", "amp.deny", ["conv2d"]),
        ("cluster/local", "setup: []", "setup: [module load x]", "cluster=mine", "cluster.setup", ["module load x"]),
        ("recipe/mnist", "lr: 1.0", "lr: 0.5", "recipe=mine", "train.lr", 0.5),
        ("profile/none", "start: 10", "start: 20", "profile=mine", "profile.start", 20),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" in value else "",
)
def test_a_copy_edited_in_one_key_asks_for_that_key_alone(
    path: str, old: str, new: str, word: str, key: str, value: Any, tmp_path: Path
) -> None:
    group, _, _ = path.rpartition("/")
    copy = tmp_path / group / ("mine.yaml" if group else "config.yaml")
    copy.parent.mkdir(exist_ok=True)
    text = (conf_folder() / f"{path}.yaml").read_text()
    assert old in text
    copy.write_text(text.replace(old, new))
    composer = Composer(config_dirs=[tmp_path])
    (cell,) = cells(composer, [parse(word)])
    spec = make(cell)
    found = origins(cell, spec, resolve(spec, LAPTOP))
    asked = {each.key: (each.value, each.place) for each in found if is_chosen(each, leaves(defaults()))}
    assert {each for each, (_, place) in asked.items() if str(tmp_path) in place} == {key}
    assert asked[key] == (value, str(copy))


def test_a_word_with_several_keys_is_where_those_alone_come_from() -> None:
    composer = Composer()
    (cell,) = cells(composer, [parse("checkpoint={every: 5}")])
    spec = make(cell)
    found = origins(cell, spec, resolve(spec, LAPTOP))
    places = {origin.key: origin.place for origin in found}
    assert places["checkpoint.every"] == "command line: checkpoint={every: 5}"
    assert "command line" not in places["checkpoint.keep"]


def layered(tmp_path: Path, layers: list[int], keys: dict[str, tuple[Any, ...]]) -> Cell:
    """The job of keys that are set by: a site's config.yaml (0), a group's file (1), an experiment (2), words (3)."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "experiment").mkdir()
    where = ["config.yaml", "recipe/mine.yaml", "experiment/mine.yaml"]
    for layer, path in enumerate(where):
        head = "# @package _global_\n" if layer else ""
        asked = {key: of_key[layer] for key, of_key in keys.items()} if layer in layers else {}
        lines = [f"{key}: {value!r}\n" for key, value in {**asked, **({"recipe": "mnist"} if layer else {})}.items()]
        (tmp_path / path).write_text(head + "".join(lines).replace("True", "true").replace("False", "false"))
    composer = Composer(config_dirs=[tmp_path])
    words = [parse(word, composer.groups()) for word in ("recipe=mine", "experiment=mine", "container=docker")]
    if 3 in layers:
        words += [parse(f"{key}={json.dumps(of_key[3])}".replace('"', "")) for key, of_key in keys.items()]
    (cell,) = cells(composer, words)
    return cell


@pytest.mark.parametrize("layer", [0, 1, 2, 3], ids=["site", "group", "experiment", "command line"])
def test_every_top_level_key_can_be_set_by_each_layer_and_wins_over_those_below(layer: int, tmp_path: Path) -> None:
    found = layered(tmp_path, list(range(layer + 1)), KEYS).config
    assert {key: found.get(key, default) for key, default in top_level().items()} == {
        key: of_key[layer] for key, of_key in KEYS.items()
    }


def test_a_value_edited_in_conf_is_the_weakest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "conf"
    shutil.copytree(conf_folder(), copy)
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 7").replace("batch: null", "batch: 64"))
    for module in ("compose", "folders"):
        monkeypatch.setattr(f"launcher.config.{module}.conf_folder", lambda: copy)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.yaml").write_text("batch: 32\n")
    training = spec_of(composer=Composer(config_dirs=[tmp_path / "site"])).training
    assert (training.seed, training.batch) == (7, 32)


def test_a_file_of_the_same_name_replaces_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "slurm.yaml").write_text("kind: slurm\naccount: ml\n")
    spec = spec_of("cluster=slurm", composer=Composer(config_dirs=[tmp_path]))
    assert spec.launch.cluster.account == "ml"


def test_an_experiment_chooses_against_the_choices_of_config_yaml(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("recipe: gan\namp: o2\n")
    spec = spec_of("experiment=twcc_published_group1", composer=Composer(config_dirs=[tmp_path]))
    assert (spec.recipe.name, spec.training.amp.level) == ("script", "o0")


def test_what_config_yaml_sets_can_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7\n")
    assert spec_of("~seed", composer=Composer(config_dirs=[tmp_path])).training.seed == 0
