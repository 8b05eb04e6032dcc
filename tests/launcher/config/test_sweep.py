from __future__ import annotations

import copy
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.compose import Composer
from launcher.config.parse import choosing_word, parse
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


VALUES: dict[str, st.SearchStrategy[str]] = {
    "amp": st.sampled_from(["o0", "o1", "o2", "o3", "o0,o1"]),
    "loss_scale": st.sampled_from(["auto", "tf", "tf,paddle"]),
    "cluster": st.sampled_from(["local", "mine"]),
    "experiment": st.sampled_from(["tied", "null"]),
    "data": st.sampled_from(["digits", "null", "digits,synthetic"]),
    "seed": st.sampled_from(["1", "range(0,3)", "5,7"]),
    "batch": st.sampled_from(["8", "8,16"]),
    "name": st.sampled_from(["a", "${seed}", "1e3"]),
    "env.A": st.sampled_from(["1.10", "x=y", "${batch}", ""]),
    "train.lr": st.sampled_from(["0.1", "0.1,0.2"]),
    "amp.deny": st.sampled_from(["[conv2d]", "[a],[b,c]", "[]"]),
    "loss_scale.init": st.sampled_from(["1024", "8,16"]),
    "cluster.mem": st.sampled_from(["4G", "1_000"]),
    "env": st.sampled_from(["{B: c}", "{A: d}"]),
}
WORDS = st.fixed_dictionaries({}, optional=VALUES).map(lambda chosen: [f"{k}={v}" for k, v in chosen.items()])


@functools.cache
def composed_files(folder: Path, *choices: str) -> Any:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", [*choices, f"hydra.searchpath=[file://{folder}]"])
    OmegaConf.set_struct(config, False)
    return config


def composed_by_hydra(folder: Path, cell: Cell) -> dict[str, Any]:
    """The cell by Hydra's public interface alone, from the same files."""
    chosen = [choosing_word(word, word.values[0]) for word in cell.words if word.kind == "group"]
    config = copy.deepcopy(composed_files(folder, *filter(None, chosen)))
    for each in cell.words:
        if each.kind == "value":
            OmegaConf.update(config, each.key, literal(each.values[0]), merge=True)
    found = OmegaConf.to_container(config, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def job(cell: Cell) -> tuple[Any, ...] | str:
    """The job that a cell spells, or why it spells none."""
    try:
        spec = make(cell)
    except UsageError as error:
        return str(error).partition(" (")[0]
    return spec.training, spec.launch, spec.words


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS)
def test_each_cell_is_the_job_that_hydra_composes(site: Composer, words: list[str]) -> None:
    for cell in cells(site, [parse(word, site.groups()) for word in words]):
        config = composed_by_hydra(Path(site.config_dirs[0]), cell)
        assert job(cell) == job(dataclasses.replace(cell, config=config))


def test_a_swept_key_that_an_interpolation_reads_changes_what_reads_it(site: Composer) -> None:
    found = cells(site, [parse("experiment=tied"), parse("seed=4,5")])
    assert [cell.config["name"] for cell in found] == ["s4", "s5"]


def test_an_interpolation_may_read_a_key_that_has_only_a_default(site: Composer) -> None:
    (cell,) = cells(site, [parse("experiment=tied")])
    assert cell.config["name"] == "s0"
    assert "seed" not in cell.config


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["${", "$", "}", "\\", "oc.env:HOME", "seed", "a"]), max_size=8).map("".join))
def test_text_in_a_group_is_not_evaluated(site: Composer, text: str) -> None:
    quoted = "'" + text.replace("\\", "\\\\") + "'"
    for words in ([], ["experiment=tied"]):  # the latter's files have interpolations
        (cell,) = cells(site, [*map(parse, words), parse(f"env={{A: {quoted}}}")])
        assert cell.config["env"] == {"A": text}


@pytest.mark.parametrize(
    "word",
    ["train.channels=[${name},8]", "train={channels: [${batch}]}", "checkpoint={every: ${steps}}", "seed=1,${x}"],
)
def test_interpolations_of_the_command_line_are_refused_as_they_were_typed(word: str) -> None:
    key, _, text = word.partition("=")
    text = text.rpartition(",")[2] if key == "seed" else text
    with pytest.raises(UsageError, match=re.escape(f"{key}={text}: interpolations are for configuration files; write")):
        cells(COMPOSER, [parse("recipe=gan"), parse(word)])


def test_of_two_words_for_one_key_the_last_wins() -> None:
    (cell,) = cells(COMPOSER, [parse("batch=8"), parse("amp=o0"), parse("amp=o2"), parse("batch=16")])
    assert (cell.config["batch"], cell.config["amp"]) == (16, {"level": "o2"})


def test_cells_come_in_the_order_of_the_words() -> None:
    found = cells(COMPOSER, [parse("amp=o0,o1"), parse("batch=8,16")])
    assert [cell.swept for cell in found] == [
        (("amp", "o0"), ("batch", 8)),
        (("amp", "o0"), ("batch", 16)),
        (("amp", "o1"), ("batch", 8)),
        (("amp", "o1"), ("batch", 16)),
    ]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("amp=o9", "amp=o9 is not one of o0, o1, o2, o3, bf16-mixed, bf16-true, fp16-mixed"),
        ("amp=null", "amp=null is not one of"),
        ("~amp", "~amp: amp can't be left out; say one of o0, o1, o2, o3"),
        ("amp=[o1]", "amp=[o1] is not one of"),
        ("amp=O2", "; did you mean o2?"),
        (
            "amp==o2",
            "; did you mean o2?",
        ),
        ("seed=range(0,1000000000)", "a sweep over seed has more than 10,000 cells"),
        ("recipe=mnst", "did you mean mnist?"),
        ("bach=3", "unknown key bach; did you mean batch?"),
        ("cluster.partion=x", "did you mean cluster.partition?"),
        ("batch=1,1", "has the cell batch=1 twice"),
        ("~batch", "~batch has nothing to take back: no file sets it"),
    ],
)
def test_unknown_keys_and_choices_are_refused_with_the_nearest(word: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        cells(COMPOSER, [parse(word)])
    assert says in str(error.value)


def test_a_broken_file_of_the_user_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("kind: [slurm\n")
    with pytest.raises(UsageError) as error:
        cells(Composer(config_dirs=[tmp_path]), [parse("cluster=mine")])
    assert "cluster/mine.yaml:1: can't be read as YAML" in str(error.value)
    assert "mine.yaml" in str(error.value)


def test_a_missing_config_dir_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        Composer(config_dirs=[tmp_path / "nowhere"]).groups()
