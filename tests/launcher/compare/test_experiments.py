"""Experiments: every one of them composes and plans at full size and small."""

from __future__ import annotations

import dataclasses
import functools
import json
import re

import pytest

from amp_launcher.typed import plain
from launcher.commands import compare
from launcher.commands import plan as plan_verb
from launcher.commands import run as run_verb
from launcher.compare import comparison, experiments, intervals, planning
from launcher.config.paths import conf_folder
from launcher.errors import UsageError
from tests.launcher.hosts import LAPTOP, TWO_A100

KEY = "experiment="
PADDLES = ["paddle_simplenet", "paddle_simplenet_static"]
NAMES = sorted(
    path.stem for path in (conf_folder() / "experiment").glob("*.yaml") if experiments.find(path.stem, ()) is not None
)
HOSTS = {"laptop": LAPTOP, "a100": TWO_A100}
EVERYTHING = {"torch": "2.13.0", "tensorflow": "2.21.0", "paddle": "3.3.1"}


@functools.cache
def planned(name, *words, host="laptop"):
    """The comparison that `experiment=NAME` and the words spell, on a host of `HOSTS`."""
    facts = dataclasses.replace(HOSTS[host], packages=EVERYTHING, folders={"/data": ("train.bin", "test.bin")})
    return plan_of(name, *words, facts=facts)


def plan_of(name, *words, facts, config_dirs=()):
    requested = experiments.prepare(name, experiments.find(name, config_dirs), [KEY + name, *words], config_dirs)
    return planning.of_arms(requested, (), facts=facts)[0]


def at_full_size(name, *words):
    """On a host of two GPUs, with the data that it needs."""
    data = ["data.dir=/data"] if name == "cifar100_efficientnet" else []
    return planned(name, *data, *words, host="a100")


def test_every_table_that_is_repeated_is_there():
    assert ["alcf_gan", "cifar100_efficientnet", "graph_rewrite", *PADDLES, "twcc_resnet50"] == NAMES


in_both_frameworks = pytest.mark.parametrize("framework", [[], ["framework=torch"]], ids=["published", "torch"])


@pytest.mark.parametrize("name", NAMES)
@in_both_frameworks
def test_at_full_size_it_is_measured_in_float16_on_one_gpu_with_enough_rounds_for_an_interval(name, framework):
    plan = at_full_size(name, *framework)
    published = "paddle" if name in PADDLES else "tensorflow"
    assert plan.name == name
    assert {arm.framework for arm in plan.arms} == {"torch" if framework else published}
    assert {(arm.gpus, arm.settings["device"]) for arm in plan.arms} == {(1, "cuda")}
    assert {arm.settings["amp"]["dtype"] for arm in plan.arms if arm.settings["amp"]["level"] != "o0"} == {"float16"}
    assert plan.comparison.rounds >= intervals.ENOUGH
    assert len({comparison.label(arm) for arm in plan.arms}) == len(plan.arms)


@pytest.mark.parametrize("name", NAMES)
@in_both_frameworks
def test_small_it_needs_no_gpu_and_no_data_and_each_arm_is_what_its_label_says(name, framework):
    plan = planned(name, "scale=smoke", *framework)
    assert plan.comparison.total <= 5
    assert len({comparison.label(arm) for arm in plan.arms}) == len(plan.arms)
    for arm in plan.arms:
        label, settings = comparison.label(arm), arm.settings
        assert settings["data"]["name"] == "synthetic"
        assert arm.framework == "torch" or not framework
        assert settings["xla"] or "XLA" not in label
        assert settings["tf32"] or "TF32" not in label or label == "TF32: float32 again"
        batches = [int(batch) for batch in re.findall(r", (\d+)", label)]
        assert batches in ([], [settings["batch"]])
        assert "float16" not in label or settings["amp"]["dtype"] == "float16"


@pytest.mark.parametrize("name", NAMES)
def test_where_there_is_no_gpu_the_small_form_is_named(name):
    with pytest.raises(UsageError, match=f"; experiment={name} scale=smoke is its form for a machine without GPU$"):
        planned(name)


def test_what_the_refusal_of_the_small_form_in_paddle_advises_is_planned():
    small = ("framework=paddle", "scale=smoke")
    with pytest.raises(UsageError, match=r"train\.api=static has one"):
        planned("paddle_simplenet", *small)
    plan = planned("paddle_simplenet", *small, "train.api=static")
    assert [comparison.label(arm) for arm in plan.arms] == ["float32", "O1", "O2"]


def test_what_a_cpu_could_measure_at_full_size_is_planned_with_a_note():
    assert planned("twcc_resnet50", "framework=torch", "gpus=0").advice[0] == (
        "its full size is for a GPU, and here a CPU has it; "
        "experiment=twcc_resnet50 scale=smoke is its form for a machine without GPU"
    )
    (note,) = planned("twcc_resnet50", "scale=smoke").advice
    assert "in bfloat16 takes TensorFlow about ten times one in float32" in note


@pytest.mark.parametrize(
    ("words", "why"),
    [([], "gpus=1: "), (["cluster=ssh", "cluster.host=nowhere.invalid"], "there is no host nowhere.invalid")],
)
def test_where_a_table_cannot_run_plan_prints_its_words_and_figures(words, why, capsys):
    assert plan_verb.main(["experiment=twcc_resnet50", *words]) == 0
    printed = capsys.readouterr().out
    assert "arm 03: amp=o1 batch=256 amp.dtype=float16 loss_scale=tf xla=true" in printed
    assert re.search(r"^3 AMP, 256 +1308.37 +18.83$", printed, re.MULTILINE)
    assert f"`run` refuses it here: {why}" in printed


def test_the_plan_says_what_was_published_and_what_was_typed():
    lines = planning.describe(at_full_size("alcf_gan"))
    assert lines[0] == (
        "a comparison of 5 arms: 5 rounds of 5 blocks, 56 steps each, 5 s apart; 280 steps of each arm in all"
    )
    assert (
        "arm 04: amp=o2 batch=4090 amp.dtype=float16 loss_scale=keras loss_scale.per_optimizer=true "
        "'train.channels=[63,63,31,7]'" in lines
    )
    assert "float16             0.0684" in lines


@pytest.fixture
def recorded(tmp_path):
    """A file of facts: a host with GPUs."""
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(plain(dataclasses.replace(TWO_A100, packages=EVERYTHING))))
    return path


def test_plan_takes_recorded_facts_and_prints_json(recorded, capsys):
    words = ["experiment=twcc_resnet50", "--facts", str(recorded)]
    assert plan_verb.main([*words, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert [arm["settings"]["batch"] for arm in plan["arms"]] == [128, 256, 256, 256, 512]
    assert plan_verb.main(words) == 0
    shown = capsys.readouterr().out
    assert "1 GPU, box" in shown and shown.endswith("`plan --script` prints run.sh\n") and "#!" not in shown
    assert plan_verb.main([*words, "--all"]) == 0
    places = dict(re.findall(r"^([\w.]+) +\S+ +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    assert places["seed"] == "default"
    assert {places[key] for key in comparison.SETTLED} == {"the comparison"}
    assert plan_verb.main([*words, "--script"]) == 0
    assert capsys.readouterr().out.count("#!/usr/bin/env bash") == 2


@pytest.mark.parametrize("verb", [run_verb, plan_verb, compare])
def test_cfg_shows_each_arms_configuration_and_starts_nothing(verb, tmp_path, capsys):
    root = tmp_path / "runs"
    assert verb.main(["experiment=alcf_gan", "scale=smoke", f"run_root={root}", "--cfg", "job"]) == 0
    text = capsys.readouterr().out
    assert "# cell 4: arm=half, bad sizes\n" in text and text.count("recipe:") >= 5
    assert not root.exists()


# Copied from the pages.
@pytest.mark.parametrize(
    ("name", "key", "figures"),
    [
        ("twcc_resnet50", "rate", [393.49, 405.73, 1308.37, 1309.21, 1361.00]),
        ("twcc_resnet50", "memory_gib", [24.83, 30.58, 18.83, 18.84, 30.58]),
        ("paddle_simplenet", "step_seconds", [0.529, 0.118, 0.102, 1.13, None]),
        ("paddle_simplenet", "loss", [0.6486028, 0.6486219, 0.6743, 0.6602017, None]),
        ("paddle_simplenet", "loss_step", [20, 20, 20, 2, None]),
        ("paddle_simplenet_static", "step_seconds", [0.531, 0.117, 0.098, 0.140]),
        ("paddle_simplenet_static", "loss", [0.6486028, 0.6486222, 0.6743, 0.6691731]),
        ("alcf_gan", "step_seconds", [0.150, 0.101, 0.0684, None, 0.170]),
        ("cifar100_efficientnet", "epoch_seconds", [159, 67, None, None]),
        ("cifar100_efficientnet", "accuracy", [0.5242, 0.5059, None, None]),
    ],
)
def test_published_figures_are_those_of_the_page_arm_by_arm(name, key, figures):
    assert [getattr(arm, key) for arm in planned(name, "scale=smoke").published.arms] == figures


def test_the_groups_of_twcc_differ_as_the_page_says():
    for words, key in (([], "xla"), (["framework=torch"], "compile")):
        settings = [arm.settings for arm in at_full_size("twcc_resnet50", *words).arms]
        assert [(values["amp"]["level"], values[key], values["batch"]) for values in settings] == [
            *(("o0", False, 128), ("o0", False, 256), ("o1", False, 256), ("o1", True, 256), ("o1", True, 512))
        ]


def test_differences_of_another_framework_or_of_a_small_form_are_noted_with_the_published_figures():
    small, in_torch, in_tensorflow = (
        planned("paddle_simplenet", *words).published.note
        for words in (["scale=smoke"], ["scale=smoke", "framework=torch"], ["scale=smoke", "framework=tensorflow"])
    )
    assert "O2 has no float32 masters; with them it should end as O1 does" in small
    assert "In torch a linear layer adds its bias within the product" in in_torch
    assert "In torch" not in in_tensorflow and "TensorFlow's rewrite makes an addition" in in_tensorflow
    other = at_full_size("paddle_simplenet", "framework=tensorflow")
    assert [arm.mechanism for arm in other.arms] == ["float32", "grappler", "keras_policy", "grappler", "keras_policy"]


@pytest.mark.parametrize("name", ["paddle_simplenet", "paddle_simplenet_static"])
def test_the_published_o2_of_paddle_has_a_loss_scale_and_no_masters(name):
    arm = at_full_size(name).arms[2]
    amp, scale = arm.settings["amp"], arm.settings["loss_scale"]
    assert (amp["level"], amp["dtype"], amp["master_weights"]) == ("o2", "float16", False)
    assert (scale["mode"], scale["init"], arm.mechanism) == (
        "dynamic",
        1024 if name == "paddle_simplenet" else 128,
        "decorate_no_masters",
    )


def test_the_fair_arms_of_the_notebook_differ_in_precision_alone_and_train_for_its_twenty_epochs():
    plan = at_full_size("cifar100_efficientnet")
    first, _, third, _ = (arm.settings for arm in plan.arms)
    assert {key for key in first if first[key] != third[key]} == {"amp", "loss_scale"}
    assert plan.comparison.total == 20 * (40_000 // 128) == 6240


def test_words_typed_beside_it_hold_for_all_arms():
    plan = planned("paddle_simplenet", "scale=smoke", "seed=7", "compare.rounds=3", "train.lr=0.5")
    assert {arm.settings["seed"] for arm in plan.arms} == {7}
    assert {arm.settings["train"]["lr"] for arm in plan.arms} == {0.5}
    assert (plan.comparison.rounds, plan.comparison.steps) == (3, 5)
