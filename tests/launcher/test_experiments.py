"""Experiments: every one of them composes and plans at full size and small, and two run for real, small."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from launcher import comparison, experiments, runs
from launcher.config import conf_folder
from launcher.errors import UsageError
from launcher.plan import Plan, resolve
from tests.launcher.hosts import LAPTOP, TWO_A100
from tests.launcher.run_folders import launcher

NAMES = sorted(
    each.stem for each in (conf_folder() / "experiment").glob("*.yaml") if experiments.find(each.stem, ()) is not None
)
EVERYTHING = {"torch": "2.13.0", "tensorflow": "2.21.0", "paddle": "3.3.1"}


def planned(name: str, *words: str, facts=LAPTOP) -> Plan:
    """The comparison that `experiment=NAME` and the words spell."""
    found = experiments.find(name, ())
    assert found is not None
    asked = experiments.ask(name, found, [f"experiment={name}", *words], ())
    comparison.check(asked.specs)
    host = dataclasses.replace(facts, packages=EVERYTHING, folders={"/data": ("train.bin", "test.bin")})
    plans = [resolve(comparison.settled(spec, asked.how), host) for spec in asked.specs]
    return comparison.make(plans, asked.how, name, asked.published)


def test_each_is_measured_in_the_framework_that_was_published():
    words = {"cifar100_efficientnet": ["data.dir=/data"]}
    found = {name: planned(name, "gpus=1", *words.get(name, []), facts=TWO_A100).framework for name in NAMES}
    assert found == {**dict.fromkeys(NAMES, "tensorflow"), "paddle_simplenet": "paddle"}


def test_the_tables_that_are_repeated_are_all_there():
    assert NAMES == ["alcf_gan", "cifar100_efficientnet", "graph_rewrite", "paddle_simplenet", "twcc_resnet50"]


@pytest.mark.parametrize("name", NAMES)
def test_at_full_size_it_plans_for_a_gpu_with_enough_rounds_for_an_interval(name):
    words = ["data.dir=/data"] if name == "cifar100_efficientnet" else []
    whole = planned(name, *words, "gpus=1", facts=TWO_A100)
    assert whole.comparison is not None and whole.comparison.rounds >= comparison.ENOUGH
    assert len({comparison.label(arm) for arm in whole.arms}) == len(whole.arms)
    assert all(arm.settings["device"] == "cuda" for arm in whole.arms)


@pytest.mark.parametrize("name", NAMES)
def test_small_it_plans_for_a_machine_without_a_gpu_or_data(name):
    whole = planned(name, "scale=smoke")
    assert whole.comparison is not None and whole.comparison.total <= 5
    assert all(arm.settings["data"]["name"] == "synthetic" for arm in whole.arms)


# Copied from the pages.
@pytest.mark.parametrize(
    ("name", "key", "figures"),
    [
        ("twcc_resnet50", "rate", [393.49, 405.73, 1308.37, 1309.21, 1361.00]),
        ("twcc_resnet50", "memory_gb", [25.43, 31.31, 19.28, 19.29, 31.31]),
        ("paddle_simplenet", "step_seconds", [0.529, 0.118, 0.102, 1.13]),
        ("paddle_simplenet", "loss", [0.6486028, 0.6486219, 0.6743, 0.6602017]),
        ("alcf_gan", "step_seconds", [0.150, 0.101, 0.0684, None, None]),
        ("cifar100_efficientnet", "epoch_seconds", [159, 67, None, None]),
        ("cifar100_efficientnet", "accuracy", [0.5242, 0.5059, None, None]),
    ],
)
def test_published_figures_are_those_of_the_page_arm_by_arm(name, key, figures):
    said = planned(name, "scale=smoke").published
    assert said is not None
    assert [getattr(each, key) for each in said.arms] == figures


def test_the_groups_of_twcc_differ_as_the_page_says():
    for words, key in (([], "xla"), (["framework=torch"], "compile")):
        whole = planned("twcc_resnet50", "gpus=1", *words, facts=TWO_A100)
        found = [(arm.settings["amp"]["level"], arm.settings[key], arm.settings["batch"]) for arm in whole.arms]
        expected = [("o0", False, 128), ("o0", False, 256), ("o1", False, 256), ("o1", True, 256), ("o1", True, 512)]
        assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_measured_in_torch_too(name):
    words = ["data.dir=/data"] if name == "cifar100_efficientnet" else []
    full = planned(name, "framework=torch", "gpus=1", *words, facts=TWO_A100)
    small = planned(name, "framework=torch", "scale=smoke")
    assert {arm.framework for whole in (full, small) for arm in whole.arms} == {"torch"}


def test_the_fair_arms_of_the_notebook_differ_in_precision_alone():
    whole = planned("cifar100_efficientnet", "data.dir=/data", "gpus=1", facts=TWO_A100)
    first, _, third, _ = (arm.settings for arm in whole.arms)
    assert {key for key in first if first[key] != third[key]} == {"amp"}


@pytest.mark.parametrize("framework", [[], ["framework=torch"]])
@pytest.mark.parametrize("name", NAMES)
def test_small_no_arm_is_called_what_it_is_not(name, framework):
    whole = planned(name, "scale=smoke", *framework)
    assert len({comparison.label(arm) for arm in whole.arms}) == len(whole.arms)
    for arm in whole.arms:
        label, settings = comparison.label(arm), arm.settings
        assert settings["xla"] or "XLA" not in label
        assert settings["tf32"] or "TF32" not in label or label == "TF32: float32 again"
        batches = [int(each) for each in re.findall(r", (\d+)", label)]
        assert batches in ([], [settings["batch"]])
        assert "float16" not in label or settings["amp"]["dtype"] == "float16"


def test_what_a_small_form_leaves_out_is_said_beside_what_was_published():
    notes = {name: planned(name, "scale=smoke").published.note for name in NAMES}
    assert "its second arm is the first once more" in notes["alcf_gan"]
    assert "its fourth arm is the third once more" in notes["twcc_resnet50"]
    assert "It ran in torch" in notes["paddle_simplenet"]
    assert "That page gives no figures" in notes["graph_rewrite"]


def test_words_typed_beside_it_hold_for_all_arms():
    whole = planned("paddle_simplenet", "scale=smoke", "seed=7", "compare.rounds=3", "train.lr=0.5")
    assert {arm.settings["seed"] for arm in whole.arms} == {7}
    assert {arm.settings["train"]["lr"] for arm in whole.arms} == {0.5}
    assert (whole.comparison.rounds, whole.comparison.steps) == (3, 5)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["scale=smok"], "scale=smok is not one of smoke; did you mean smoke?"),
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
        experiments.asked_for(words, ())


def test_settings_of_a_single_run_are_left_to_hydra():
    assert experiments.find("twcc_published_group1", ()) is None
    assert experiments.find("no_such_experiment", ()) is None
    assert experiments.find("../config", ()) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("arms: [{name: a, word: [amp=o0]}]", "unknown key arms[0].word"),
        ("arms: 3", "arms=3 should be a list"),
        ("arms: [{name: a}]\nscales: {smoke: 3}", "scales.smoke should be a group of keys"),
        ("arms: [{name: a}, {name: b}]\nscales: {s: {names: [c]}}", "scales.s.names should name all 2 arms, not 1"),
        ("arms: [{name: a}]\npublished: {source: a, hardware: b, arms: []}", "1 arms, and 0 in what was published"),
        ("arms: [", "while parsing"),
    ],
)
def test_a_file_of_ones_own_that_is_wrong_is_refused_by_its_name(tmp_path, text, complaint):
    path = tmp_path / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UsageError, match=f"mine.yaml: .*{re.escape(complaint)}"):
        experiments.find("mine", [tmp_path])


@pytest.mark.parametrize("name", ["two words", "a;b", "x" * 61])
def test_a_name_that_no_run_may_have_is_no_experiment(tmp_path, name):
    path = tmp_path / "experiment" / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text("arms: [{name: a}, {name: b}]\n")
    assert experiments.find(name, [tmp_path]) is None


def test_a_file_of_ones_own_is_an_experiment_too(tmp_path):
    path = tmp_path / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text("words: [batch=8]\narms: [{name: a, words: [amp=o0]}, {name: b, words: [amp=o2]}]\n")
    found = experiments.find("mine", [tmp_path])
    asked = experiments.ask("mine", found, ["experiment=mine"], [tmp_path])
    assert [spec.words[:2] for spec in asked.specs] == [("amp=o0", "batch=8"), ("amp=o2", "batch=8")]


def run_small(tmp_path: Path, name: str, *words: str) -> str:
    root = tmp_path / "runs"
    typed = [f"experiment={name}", "scale=smoke", "telemetry.every=0", f"run_root={root}", *words]
    done = launcher(*typed, state_home=tmp_path / "state")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = runs.run_names(str(root))
    states = [runs.read_json(each / "status.json")["state"] for each in sorted((root / run / "arms").iterdir())]
    assert states == ["done"] * len(states)
    return done.stdout


@pytest.mark.slow
def test_an_experiment_ends_with_the_published_column_beside_ours(tmp_path):
    said = run_small(tmp_path, "paddle_simplenet")
    assert "BESIDE WHAT WAS PUBLISHED" in said
    assert "form scale=smoke, which shows that it runs and says nothing of its speed" in said
    row = next(line for line in said.splitlines() if line.startswith("O2  ") and "0.6743" in line)
    assert row.split()[1] == "5.186"


@pytest.mark.slow
def test_tensorflows_graph_rewrite_is_measured_off_and_on(tmp_path):
    pytest.importorskip("tensorflow")
    said = run_small(tmp_path, "graph_rewrite")
    proofs = [
        line.split()[-2:] for line in said.splitlines() if line.startswith(("off  ", "on, ")) and "proved" in line
    ]
    assert proofs == [["proved", "done"]] * 3
    assert "grappler in tensorflow" in said
