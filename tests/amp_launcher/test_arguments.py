"""A trainer's settings from words and from the plan in a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_launcher import arguments
from amp_launcher.arguments import parse, planned_ranks
from amp_launcher.precision.levels import PRESETS
from amp_launcher.typed import SettingsError, plain


def refused(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(words, "mnist", "torch")
    return str(caught.value)


def write_plan(folder: Path, *words: str, **more: object) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": 2, "settings": plain(parse(words, "mnist", "torch").settings), **more}))
    return path


def mnist(*words: str):
    return parse(words, "mnist", "torch").settings


def test_what_no_word_sets_is_the_data_sets_own_or_the_recipes():
    chosen = mnist()
    assert (chosen.batch, chosen.epochs, chosen.data.name, chosen.train.lr) == (128, 24, "digits", 1.0)
    assert mnist("data=synthetic").epochs == 12
    assert mnist("steps=10").epochs is None
    assert mnist("batch=null").batch == 128
    assert [parse([f"data={name}"], "gan", "torch").settings.batch for name in ("digits", "synthetic")] == [256, 4096]


def test_short_words_stand_for_their_group():
    chosen = mnist("amp=o2", "data=mnist", "data.dir=1e3")
    assert (chosen.amp.level, chosen.data.name, chosen.data.dir) == ("o2", "mnist", "1e3")


@pytest.mark.parametrize(
    "words", [["loss_scale=tf", "loss_scale.init=1024"], ["loss_scale.init=1024", "loss_scale=tf"]]
)
def test_single_keys_refine_a_loss_scale_preset_in_either_order(words):
    scale = mnist("amp=o1", *words).loss_scale
    assert (scale.mode, scale.init) == (PRESETS["tf"].mode, 1024.0)


def test_words_are_read_by_the_type_of_their_key():
    chosen = mnist("amp.deny=[conv2d,linear]", "train.clip=1", "tf32=null", "deterministic=false")
    assert (chosen.amp.deny, chosen.train.clip) == (("conv2d", "linear"), 1.0)
    assert (chosen.tf32, chosen.deterministic) == (None, False)
    chosen = mnist("checkpoint={every: 5}", "train={lr: 0.5, clip: 2}")
    assert (chosen.checkpoint.every, chosen.checkpoint.keep) == (5, 2)
    assert (chosen.train.lr, chosen.train.clip, chosen.train.rho) == (0.5, 2.0, 0.95)


def test_a_run_folder_alone_gives_the_settings_of_its_plan(tmp_path):
    words = ["amp=o2", "batch=512", "loss_scale=apex", "amp.keep_fp32=[dense2]", "train.lr=0.5"]
    write_plan(tmp_path, *words, run_id="r")
    chosen = parse([f"run={tmp_path}"], "mnist", "torch")
    assert chosen.settings == parse(words, "mnist", "torch").settings
    assert (chosen.run, chosen.plan["run_id"]) == (tmp_path, "r")


def test_each_attempt_has_the_plan_of_the_newest_resume_before_it(tmp_path, monkeypatch):
    write_plan(tmp_path, "steps=5")
    for number, steps in ((1, None), (2, 7), (3, None), (4, 9)):
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True)
        if steps:
            write_plan(folder, f"steps={steps}")
    for attempt, steps in (("1", 5), ("2", 7), ("3", 7), ("4", 9), ("", 9)):
        monkeypatch.setenv("LAUNCHER_ATTEMPT", attempt)
        assert parse([f"run={tmp_path}"], "mnist", "torch").settings.steps == steps


def test_typed_words_are_the_settings_whatever_plan_the_run_folder_has(tmp_path):
    write_plan(tmp_path, "amp=o2", "batch=512")
    chosen = parse(["amp=o1", f"run={tmp_path}"], "mnist", "torch")
    assert (chosen.settings.amp.level, chosen.settings.batch, chosen.plan) == ("o1", 128, {})


@pytest.mark.parametrize(
    "content",
    ["no json", "[]", '{"schema": 9, "settings": {}}', '{"schema": 2}', '{"schema": 2, "settings": {"a": 1}}'],
)
def test_a_file_that_is_no_plan_is_refused_with_its_path(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    assert f"{tmp_path}/plan.json" in refused(f"run={tmp_path}")


def test_the_planned_ranks_are_nodes_times_processes():
    assert planned_ranks({"nodes": 2, "processes": 4}) == 8
    assert planned_ranks({}) is None


def test_help_names_every_key_with_its_default():
    text = arguments.help_text("mnist", "amp_launcher.recipes.mnist.train_torch")
    assert "amp.level=o1" in text
    assert "train.rho=0.95" in text
    assert "checkpoint.keep=2" in text
