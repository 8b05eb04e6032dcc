"""The files of `conf/`: equal to the settings classes, fit to be copied, and weaker than whatever is asked for."""

from __future__ import annotations

import itertools
import json
import operator
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amp_launcher.precision.levels import MODES, Amp
from amp_launcher.typed import leaves
from launcher.commands.plan import is_chosen
from launcher.config import files
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.paths import conf_folder
from launcher.config.schema import defaults
from launcher.config.shipped import CONFIG, DECIDES, defaults_of, requests
from launcher.config.spec import make
from launcher.config.sweep import Cell, cells
from launcher.config.write_conf import files as written
from launcher.plan.provenance import Origin, decided, origins
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.slurm.test_text import LOGIN

PATHS = written()
CONF = sorted(conf_folder().rglob("*.yaml"))
OTHER = {
    "framework": ("tensorflow", "paddle", "torch"),
    "parallel": ("ddp", "fsdp"),
    "device": ("cpu", "cuda"),
    "env_from": ("shell", "none"),
    "share": ("group", "none"),
    "stop_signal": ("INT", "TERM"),
    "tracker": ("mlflow", "wandb"),
    "visible_gpus": ([1], [2]),
    "deterministic": (True, False),
    "tf32": (True, False),
    "require_proof": (True, False),
    **{key: ({"every": 1}, {"every": 2}) for key in ("checkpoint", "telemetry")},
    "proof": ({"share": 0.1}, {"share": 0.2}),
    "verify": ({"record": True}, {"record": False}),
    "restart": ({"max": 1}, {"max": 2}),
    "watchdog": ({"after": 60.0}, {"after": 600.0}),
    **{key: ({"A": "a"}, {"A": "b"}) for key in ("env", "sweep", "secrets")},
}
"""Values of keys that take neither numbers nor any text; each unlike the next."""


def of_layers(key: str, default: Any) -> tuple[Any, ...]:
    """Values of a key for four layers: the first unlike its default, each unlike the one below."""
    if key in OTHER:
        values: Sequence[Any] = OTHER[key]
    elif isinstance(default, bool):
        values = (not default, default)
    elif isinstance(default, list):
        values = (["a"], ["b"])
    elif isinstance(default, int) or key in ("batch", "epochs", "steps", "gpus"):
        values = (11, 12)
    else:
        values = ("a", "b")
    return tuple(itertools.islice(itertools.cycle(values), 4))


KEYS = {key: of_layers(key, default) for key, default in defaults_of(CONFIG).items()}


def test_files_have_every_key_of_their_class_with_its_default_and_help() -> None:
    texts = {str(path.relative_to(conf_folder()).with_suffix("")): path.read_text() for path in CONF}
    written = {path: text for path, text in texts.items() if not path.startswith("experiment/")}
    assert written == PATHS, "run `make conf`"


def test_a_default_is_no_request() -> None:
    for path in PATHS:
        asked = requests(path, files.read(conf_folder() / f"{path}.yaml"))
        group, _, name = path.partition("/")
        more = {"limits"} if name in ("docker", "podman") else set()
        if mode := MODES.get(name) if group == "amp" else None:
            if mode.tf32 is not None:
                assert asked == {"tf32": mode.tf32, "amp": {"level": "o0", "preset": name}}
                continue
            more = {"preset"} | {key for key in ("dtype", "gemm") if getattr(mode, key) != getattr(Amp(), key)}
        assert asked.keys() == {DECIDES.get(group, "defaults")} | more, path


@pytest.mark.parametrize(
    "words",
    [
        *("", "amp=o2 loss_scale=tf amp.dtype=float16", "amp=fp32", "amp=bf16-true", "recipe=script script=a.py"),
        *("cluster=slurm cluster.account=ml", "container=docker image=x profile=nsys"),
        *("recipe=gan data=mnist data.dir=/x framework=tensorflow", "experiment=twcc_published_group2"),
    ],
)
def test_a_copy_of_all_files_changes_nothing(words: str, tmp_path: Path) -> None:
    shutil.copytree(conf_folder(), tmp_path / "copy")
    spec, shipped = spec_of(*words.split(), composer=Composer(config_dirs=[tmp_path / "copy"])), spec_of(*words.split())
    assert (spec.training, spec.launch, spec.recipe) == (shipped.training, shipped.launch, shipped.recipe)


@pytest.mark.parametrize(
    ("path", "old", "new", "word", "key", "value"),
    [
        ("config", "seed: 0", "seed: 7", "batch=64", "seed", 7),
        ("amp/o1", "deny: []", "deny: [conv2d]", "amp=mine", "amp.deny", ["conv2d"]),
        ("cluster/local", "setup: []", "setup: [module load x]", "cluster=mine", "cluster.setup", ["module load x"]),
        ("recipe/mnist", "lr: 1.0", "lr: 0.5", "recipe=mine", "train.lr", 0.5),
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
    asked = {
        origin.key: (origin.value, origin.place)
        for origin in origins_of(word, composer=Composer(config_dirs=[tmp_path]))
        if is_chosen(origin, leaves(defaults()))
    }
    assert {name for name, (_, place) in asked.items() if str(tmp_path) in place} == {key}
    assert asked[key] == (value, str(copy))


def origins_of(word: str, composer: Composer, facts: Facts = LAPTOP) -> list[Origin]:
    (cell,) = cells(composer, [parse(word)])
    spec = make(cell)
    return origins(cell, spec, decided(resolve(spec, facts)))


@pytest.mark.parametrize(
    ("facts", "word", "places"),
    [
        (LAPTOP, "seed=1", {"data.name": "the recipe's first", "name": "recipe and level", "run_root": "default"}),
        (LAPTOP, "data=digits", {"data.name": "conf/data/digits.yaml", "gpus": "found on the host"}),
        (LAPTOP, "name=x", {"name": "command line: name=x", "device": "found on the host", "batch": "default"}),
        (LOGIN, "cluster=slurm", {"cluster.cpus": "a number for each GPU", "gpus": "found in the partition"}),
        (LOGIN, "cluster=slurm", {"python": "found on the host", "nodes": "default"}),
    ],
)
def test_what_planning_decides_says_by_what(facts: Facts, word: str, places: dict[str, str]) -> None:
    found = {origin.key: origin.place for origin in origins_of(word, Composer(), facts)}
    assert {key: found[key] for key in places} == places


def test_a_word_with_several_keys_is_where_those_alone_come_from() -> None:
    places = {origin.key: origin.place for origin in origins_of("checkpoint={every: 5}", Composer())}
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
    config = layered(tmp_path, list(range(layer + 1)), KEYS).config
    set_here = {key: config.get(key, default) for key, default in defaults_of(CONFIG).items()}
    assert set_here == {key: of_key[layer] for key, of_key in KEYS.items()}


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


@pytest.mark.parametrize(
    ("file", "text", "word", "expected"),
    [
        ("cluster/slurm.yaml", "kind: slurm\naccount: ml\n", "cluster=slurm", {"launch.cluster.account": "ml"}),
        (
            "config.yaml",
            "recipe: gan\namp: o2\n",
            "experiment=twcc_published_group1",
            {"recipe.name": "script", "training.amp.level": "o0"},
        ),
        ("config.yaml", "seed: 7\n", "~seed", {"training.seed": 0}),
    ],
    ids=["a file replaces the shipped one", "an experiment chooses against config.yaml", "a value is taken back"],
)
def test_of_files_and_words_the_stronger_wins(
    file: str, text: str, word: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    spec = spec_of(word, composer=Composer(config_dirs=[tmp_path]))
    assert {name: operator.attrgetter(name)(spec) for name in expected} == expected


def test_a_shipped_file_reads_as_a_persons_own_does():
    paths = list(conf_folder().rglob("*.yaml"))
    assert len(paths) > 50
    for path in paths:
        assert repr(files.read(path, shipped=True)) == repr(files.read(path)), path
