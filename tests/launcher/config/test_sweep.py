"""The cells of a sweep, each as Hydra would compose it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.compose import Composer, spelled
from launcher.config.parse import parse
from launcher.config.paths import conf_folder
from launcher.config.spec import make
from launcher.config.sweep import Cell, cells, literal
from launcher.errors import UsageError

COMPOSER = Composer()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Composer:
    """A user's folder whose files refer to other keys."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "cluster").mkdir()
    (folder / "experiment").mkdir()
    (folder / "cluster" / "mine.yaml").write_text("kind: slurm\naccount: ${name}\ntime: '1:00:00'\n")
    (folder / "experiment" / "tied.yaml").write_text("# @package _global_\nname: s${seed}\nepochs: 3\nenv: {A: x}\n")
    return Composer(config_dirs=[folder])


VALUES = {
    "amp": ["o0", "o1", "o2", "o3", "o0,o1"],
    "loss_scale": ["auto", "tf", "tf,paddle"],
    "cluster": ["local", "mine"],
    "experiment": ["tied", "null"],
    "data": ["digits", "null", "digits,synthetic"],
    "seed": ["1", "range(0,3)", "5,7"],
    "batch": ["8", "8,16"],
    "name": ["a", "${seed}", "1e3"],
    "env.A": ["1.10", "x=y", "${batch}", ""],
    "train.lr": ["0.1", "0.1,0.2"],
    "amp.deny": ["[conv2d]", "[a],[b,c]", "[]"],
    "loss_scale.init": ["1024", "8,16"],
    "cluster.mem": ["4G", "1_000"],
    "env": ["{B: c}", "{A: d}"],
}
WORDS = st.fixed_dictionaries({}, optional={key: st.sampled_from(texts) for key, texts in VALUES.items()})


@functools.cache
def composed_files(folder: Path, *choices: str) -> Any:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", [*choices, f"hydra.searchpath=[file://{folder}]"])
    OmegaConf.set_struct(config, False)
    return config


def composed_by_hydra(folder: Path, cell: Cell) -> dict[str, Any]:
    """The cell by Hydra's public interface alone, from the same files."""
    chosen = [spelled(word) for word in cell.words if word.kind == "group"]
    config = copy.deepcopy(composed_files(folder, *filter(None, chosen)))
    for word in cell.words:
        if word.kind == "value":
            OmegaConf.update(config, word.key, literal(word.values[0]), merge=True)
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in plain.items()}


def job(cell: Cell) -> tuple[Any, ...] | str:
    """The job that a cell spells, or why it spells none."""
    try:
        spec = make(cell)
    except UsageError as error:
        return str(error).partition(" (")[0]
    return spec.training, spec.launch, spec.words


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=WORDS)
def test_each_cell_is_the_job_that_hydra_composes(site: Composer, chosen: dict[str, str]) -> None:
    for cell in cells(site, [parse(f"{key}={text}", site.groups()) for key, text in chosen.items()]):
        config = composed_by_hydra(Path(site.config_dirs[0]), cell)
        assert job(cell) == job(dataclasses.replace(cell, config=config))


def test_an_interpolation_reads_a_swept_key_or_one_that_has_only_a_default(site: Composer) -> None:
    swept = cells(site, [parse("experiment=tied"), parse("seed=4,5")])
    assert [cell.config["name"] for cell in swept] == ["s4", "s5"]
    (cell,) = cells(site, [parse("experiment=tied")])
    assert (cell.config["name"], "seed" in cell.config) == ("s0", False)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["${", "$", "}", "\\", "oc.env:HOME", "seed", "a"]), max_size=8).map("".join))
def test_text_in_a_group_is_not_evaluated(site: Composer, text: str) -> None:
    quoted = "'" + text.replace("\\", "\\\\") + "'"
    for words in ([], ["experiment=tied"]):  # the latter's files have interpolations
        (cell,) = cells(site, [*map(parse, words), parse(f"env={{A: {quoted}}}")])
        assert cell.config["env"] == {"A": text}


def test_cells_come_in_the_order_of_the_words_of_which_the_last_for_a_key_wins() -> None:
    made = cells(COMPOSER, [parse(word) for word in ("seed=8", "amp=o3", "amp=o0,o1", "batch=8,16", "seed=16")])
    assert [cell.swept for cell in made] == [
        (("amp", level), ("batch", batch)) for level in ("o0", "o1") for batch in (8, 16)
    ]
    assert [cell.config["seed"] for cell in made] == [16] * 4


def test_a_missing_config_dir_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        Composer(config_dirs=[tmp_path / "nowhere"]).groups()
