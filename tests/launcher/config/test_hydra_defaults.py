import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config import hydra_defaults
from launcher.config.compose import Composer, spelled
from launcher.config.folders import Folder, flat_list
from launcher.config.parse import parse
from launcher.config.paths import conf_folder

COMPOSER = Composer()
FILES = [(group, name) for group in COMPOSER.groups() for name in COMPOSER.choices(group)]
OF_OWN = {
    "cluster/tall.yaml": "kind: slurm\npartition: gpu\n",
    "amp/placed.yaml": "# @package amp\nlevel: o2\n",
    "experiment/one.yaml": "# @package _global_\nseed: 1\n",
    "experiment/several.yaml": "defaults:\n  - override /amp: o2\nseed: 2\n",
    "site/north.yaml": "seed: 3\n",
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Folder]:
    for name, text in OF_OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shipped = Folder(conf_folder())
    shipped.choices = {"amp": "o1", "loss_scale": "auto", "recipe": "mnist", "cluster": "local", "container": "none"}
    return [Folder(tmp_path), shipped]


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: value)
def test_each_shipped_file_has_the_place_that_hydra_gives_it(folders, group, name):
    flat = flat_list(folders, {group: name})
    if flat is not None:
        assert flat == hydra_defaults.defaults_list(folders, [f"{group}={name}"])


def test_files_of_several_groups_are_in_the_order_that_hydra_gives_them(folders):
    chosen = {"experiment": "one", "cluster": "tall", "data": "cifar100", "amp": "o2", "recipe": "gpt"}
    for names in itertools.permutations(chosen, 3):
        some = {name: chosen[name] for name in names}
        flat = flat_list(folders, some)
        assert flat is not None
        assert flat == hydra_defaults.defaults_list(folders, [f"{group}={name}" for group, name in some.items()])


@pytest.mark.parametrize("choice", [("amp", "placed"), ("experiment", "several"), ("site", "north"), ("amp", "o9")])
def test_what_only_hydra_decides_is_left_to_it(folders, choice):
    assert flat_list(folders, dict([choice])) is None


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ("amp=o2", "amp=o2"),
        ("++amp=o2", "amp=o2"),
        ("amp=null", ""),
        ("+site=north", "+site=north"),
        ("~data", "~data"),
        ("~data=cifar10", "~data=cifar10"),
    ],
)
def test_a_choice_is_spelled_as_hydra_reads_it(choice, word):
    assert spelled(parse(choice, ("amp", "site", "data"))) == word


def test_planning_imports_no_hydra():
    code = (
        "import sys; from launcher.__main__ import main; code = main(['plan', 'amp=o2', 'cluster=local'])\n"
        "print('imported', *sorted(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"hydra", "omegaconf"} & set(done.stdout.rpartition("imported")[2].split())
