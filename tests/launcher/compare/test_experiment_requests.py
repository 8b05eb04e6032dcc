"""Experiments as they are requested: words typed beside them, and files of one's own."""

from __future__ import annotations

import dataclasses
import re

import pytest

from launcher.compare import comparison, experiments, planning
from launcher.compare.experiments import ComparisonRequest
from launcher.config import request
from launcher.errors import UsageError
from launcher.plan.model import Compare
from tests.launcher.hosts import LAPTOP

from .test_experiments import EVERYTHING, plan_of, planned


@pytest.fixture
def write(tmp_path):
    """Writes the experiment `mine` (or another name) of a folder of one's own."""

    def write_file(text, name="mine"):
        path = tmp_path / "experiment" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return write_file


@pytest.mark.parametrize("batch", ["batch=12", None])
def test_a_word_that_is_wrong_is_called_the_experiments_or_the_command_lines(tmp_path, write, batch):
    write("words: [batch=7, accumulate=5]\narms: [{name: a, words: [amp=o0]}, {name: b, words: [amp=o2]}]\n")
    words = ["experiment=mine", *([batch] if batch else [])]
    place = "command line" if batch else "experiment=mine"
    with pytest.raises(UsageError, match=rf"does not divide .* \({place}\)$"):
        experiments.prepare("mine", experiments.find("mine", [tmp_path]), words, [tmp_path])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["scale=smok"], "scale=smok is not one of smoke; did you mean smoke?"),
        (["scale=full"], "scale=full is not one of smoke; without scale= experiment=alcf_gan has its full size"),
        (["amp=o0,o1"], "amp=o0,o1: experiment=alcf_gan has its own arms; give one value"),
        (["steps=5"], "steps=5: a comparison measures compare.rounds blocks"),
        (["compare.round=5"], "unknown key compare.round"),
        (["bach=5"], "unknown key bach; did you mean batch?"),
    ],
)
def test_wrong_words_beside_it_are_refused(words, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        planned("alcf_gan", *words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["scale=smoke", "amp=o0"], "scale=smoke is for an experiment that has scales, and no experiment is named"),
        (["experiment=twcc_published_group1", "scale=smoke"], "and experiment=twcc_published_group1 is one run"),
    ],
)
def test_a_scale_without_its_experiment_is_refused(words, complaint):
    with pytest.raises(UsageError, match=complaint):
        experiments.requested(request.split_flags(words))


def test_a_scale_of_an_experiment_that_is_not_there_is_left_to_hydra_which_names_those_that_are():
    assert experiments.requested(request.split_flags(["experiment=twcc", "scale=smoke"])) is None


def test_arguments_of_a_script_are_refused_where_none_runs():
    with pytest.raises(UsageError, match="arguments after -- are for a script, and experiment=alcf_gan runs none"):
        experiments.requested(request.split_flags(["experiment=alcf_gan", "--", "a"]))


def test_settings_of_a_single_run_are_left_to_hydra():
    assert experiments.find("twcc_published_group1", ()) is None
    assert experiments.find("no_such_experiment", ()) is None
    assert experiments.find("../config", ()) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("arms: [{name: a, word: [amp=o0]}]", "unknown key arms[0].word"),
        ("arms: [{name: a}, {words: [amp=o2]}]", "arms[1].name is missing"),
        ("arms: [{name: a}]\npublished: {source: a}", "published.hardware is missing"),
        ("arms: []\nrecipe: gan", "recipe belongs into words, as words: [recipe=...]"),
        ("arms: 3", "arms=3 should be a list"),
        ("arms: [{name: a}]\nforms: {scale=smoke: 3}", "forms.scale=smoke=3 should be a group of keys: words, compare"),
        ("arms: [{name: a}, {name: b}]\nforms: {scale=s: {names: [c]}}", "forms.scale=s: the arms are 2; names are"),
        ("arms: [{name: a}]\nforms: {scale=s: {arms: [[], []]}}", "forms.scale=s: the arms are 1; names are"),
        ("arms: [{name: a}]\npublished: {source: a, hardware: b, arms: []}", "1 arms, and 0 in what was published"),
        ("arms: [", "while parsing"),
    ],
)
def test_a_file_of_ones_own_that_is_wrong_is_refused_by_its_name(tmp_path, write, text, complaint):
    write(text)
    with pytest.raises(UsageError, match=rf"mine.yaml(:\d+)?: .*{re.escape(complaint)}"):
        experiments.find("mine", [tmp_path])


IMPOSSIBLE = """
words: [recipe=mnist, framework=tensorflow, gpus=0, data=synthetic]
arms:
  - {name: full, words: [amp=o0]}
  - {name: half, words: [amp=o1]}
  - {name: float16, words: [amp=o1, amp.dtype=float16]}
  - {name: nonsense, words: [amp=o2, "amp.deny=[MatMul]"]}
published: {source: a page, hardware: a GPU, arms: [{rate: 1}, {rate: 2}, {rate: 3}, {rate: 4}]}
"""


def test_arms_that_cannot_run_here_are_named_and_the_others_are_planned(tmp_path, write):
    how = {"facts": dataclasses.replace(LAPTOP, packages=EVERYTHING), "config_dirs": (tmp_path,)}
    write(IMPOSSIBLE)
    plan = plan_of("mine", **how)
    assert [comparison.label(arm) for arm in plan.arms] == ["full", "half"]
    assert [arm.rate for arm in plan.published.arms] == [1, 2]
    for name, why in (
        ("float16", "TensorFlow's graph rewrite is bf"),
        ("nonsense", "amp.deny=[MatMul] with amp=o2: in "),
    ):
        assert any(line.startswith(f"{name} is left out: {why}") for line in plan.advice)
        assert f"Not measured here: {name} (" in plan.published.note
    write(IMPOSSIBLE.replace("name: full, words: [amp=o0]", "name: full, words: [amp=o1, xla=true]"))
    with pytest.raises(UsageError, match=r"XLA bypasses the graph rewrite .*\(in the arm full; nothing was started"):
        plan_of("mine", **how)


def test_arms_that_are_listed_are_planned_all_or_none():
    words = "framework=tensorflow gpus=0 data=synthetic amp=o1 amp.dtype=auto,bfloat16,float16".split()
    cells = request.compose(request.split_flags(words))
    listed = ComparisonRequest(how=Compare(), cells=cells, specs=request.to_specs(cells, "arm"))
    with pytest.raises(UsageError, match=r"graph rewrite is bf.*\(in the arm amp.dtype=float16; nothing was"):
        planning.of_arms(listed, (), facts=dataclasses.replace(LAPTOP, packages=EVERYTHING))


def test_what_only_half_precision_has_does_not_hold_for_the_float32_arm():
    plan = planned("alcf_gan", "scale=smoke", "amp.dtype=float16", "amp.keep_fp32=[*dense]")
    control, half = plan.arms[0], plan.arms[2]
    assert control.settings["amp"] == {**half.settings["amp"], "level": "o0", "dtype": "auto", "keep_fp32": []}
    note = "amp=o0 is float32, and takes none of amp.dtype=float16 amp.keep_fp32=[*dense]"
    assert note in plan.advice


@pytest.mark.parametrize("name", ["two words", "a;b", "x" * 61])
def test_a_name_that_no_run_may_have_is_no_experiment(tmp_path, write, name):
    write("arms: [{name: a}, {name: b}]\n", name)
    assert experiments.find(name, [tmp_path]) is None


def test_two_arms_of_one_name_are_refused(tmp_path, write):
    write("words: [batch=8]\narms: [{name: a, words: [amp=o0]}, {name: a, words: [amp=o2]}]\n")
    with pytest.raises(UsageError, match=rf"^{tmp_path}/experiment/mine\.yaml:2: two arms are named a$"):
        experiments.find("mine", [tmp_path])


def test_a_file_of_ones_own_is_an_experiment_too(tmp_path, write):
    write("words: [batch=8]\narms: [{name: a, words: [amp=o0]}, {name: b, words: [amp=o2]}]\n")
    plan = plan_of("mine", facts=LAPTOP, config_dirs=(tmp_path,))
    assert [arm.words[:2] for arm in plan.arms] == [("amp=o0", "batch=8"), ("amp=o2", "batch=8")]
