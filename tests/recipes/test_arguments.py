"""A trainer's settings from words and from the plan in a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes import arguments, settings
from recipes.arguments import parse, planned_ranks
from recipes.precision.levels import PRESETS
from recipes.typed import SettingsError, plain


def refused(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(words, "mnist", "torch")
    return str(caught.value)


def write_plan(folder: Path, *words: str, **more: object) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": 2, "settings": plain(parse(words, "mnist", "torch").settings), **more}))
    return path


def test_no_words_give_the_recipes_own_defaults():
    chosen = parse([], "mnist", "torch").settings
    assert (chosen.batch, chosen.epochs, chosen.data.name, chosen.train.lr) == (128, 24, "digits", 1.0)


def test_a_data_set_without_epochs_of_its_own_gets_the_recipes():
    assert parse(["data=synthetic"], "mnist", "torch").settings.epochs == 12


def test_a_data_set_may_have_a_batch_of_its_own_and_no_batch_is_larger_than_what_there_is():
    assert parse(["data=digits"], "gan", "torch").settings.batch == 256
    assert parse(["data=synthetic"], "gan", "torch").settings.batch == 4096
    assert refused("data=digits", "batch=2000") == "batch=2000 is more than the 1536 samples of data=digits"


def test_a_batch_of_null_is_the_recipes_own_and_0_is_none():
    assert parse(["batch=null"], "mnist", "torch").settings.batch == 128
    with pytest.raises(SettingsError, match="batch=0 must be at least 1"):
        settings.check(parse(["batch=0"], "mnist", "torch").settings)


def test_steps_leave_epochs_unsaid():
    chosen = parse(["steps=10"], "mnist", "torch").settings
    assert (chosen.steps, chosen.epochs) == (10, None)


def test_short_words_stand_for_their_group():
    chosen = parse(["amp=o2", "data=mnist", "data.dir=1e3"], "mnist", "torch").settings
    assert (chosen.amp.level, chosen.data.name, chosen.data.dir) == ("o2", "mnist", "1e3")


@pytest.mark.parametrize(
    "words", [["loss_scale=tf", "loss_scale.init=1024"], ["loss_scale.init=1024", "loss_scale=tf"]]
)
def test_single_keys_refine_a_loss_scale_preset_in_either_order(words):
    scale = parse(["amp=o1", *words], "mnist", "torch").settings.loss_scale
    assert (scale.mode, scale.init) == (PRESETS["tf"].mode, 1024.0)


def test_words_are_read_by_the_type_of_their_key():
    chosen = parse(["amp.deny=[conv2d,linear]", "train.clip=1", "tf32=null", "deterministic=false"], "mnist", "torch")
    assert chosen.settings.amp.deny == ("conv2d", "linear")
    assert chosen.settings.train.clip == 1.0
    assert (chosen.settings.tf32, chosen.settings.deterministic) == (None, False)
    chosen = parse(["checkpoint={every: 5}", "train={lr: 0.5, clip: 2}"], "mnist", "torch")
    assert (chosen.settings.checkpoint.every, chosen.settings.checkpoint.keep) == (5, 2)
    assert (chosen.settings.train.lr, chosen.settings.train.clip, chosen.settings.train.rho) == (0.5, 2.0, 0.95)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("amp=o9", "amp=o9 is not one of o0, o1, o2, o3 (command line)"),
        ("loss_scale=tff", "did you mean tf?"),
        ("data=digit", "not one of digits, mnist, synthetic, the data of recipe=mnist; did you mean digits?"),
        ("btach=3", "unknown key btach; did you mean batch?"),
        ("train.lrr=1", "unknown key train.lrr; did you mean train.lr?"),
        ("amp.leevl=o1", "did you mean amp.level?"),
        ("nothing.here=1", "unknown key nothing.here"),
        ("batch.size=1", "unknown key batch.size"),
        ("batch=many", "batch=many should be a whole number (command line)"),
        ("train=1", "train=1 should be a group of keys: lr, rho"),
        ("checkpoint=5", "checkpoint=5 should be a group of keys: every, keep"),
        ("batch", "'batch' should be key=value"),
        ("=3", "should be key=value"),
        ("run=", "run= names no path"),
        ("data.dir=a\nb", "control character"),
        ("recipe=resnet50", "this trainer is recipe=mnist"),
        ("framework=tensorflow", "this trainer is framework=torch"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_wrong(word, part):
    assert part in refused(word)


def test_a_key_said_twice_is_refused_even_where_one_is_short():
    assert refused("amp=o1", "amp.level=o2") == "amp=o1 and amp.level=o2: say one of them (command line)"


def test_epochs_and_steps_together_are_refused():
    assert refused("epochs=1", "steps=1") == "epochs=1 and steps=1: say one of them"


def test_an_illegal_precision_is_refused_before_anything_runs():
    assert "o0 is float32" in refused("amp=o0", "amp.dtype=float16")


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


@pytest.mark.parametrize("content", ["no json", "[]", '{"schema": 9, "settings": {}}', '{"schema": 2}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    assert f"{tmp_path}/plan.json" in refused(f"run={tmp_path}")


def test_an_unknown_key_in_the_plan_is_refused_with_its_file(tmp_path):
    (tmp_path / "plan.json").write_text('{"schema": 2, "settings": {"bacth": 1}}')
    assert f"({tmp_path}/plan.json)" in refused(f"run={tmp_path}")


def test_the_planned_ranks_are_nodes_times_processes():
    assert planned_ranks({"nodes": 2, "processes": 4}) == 8
    assert planned_ranks({}) is None


def test_help_names_every_key_with_its_default():
    text = arguments.help_text("mnist", "recipes.torch_.mnist")
    assert "amp.level=o1" in text
    assert "train.rho=0.95" in text
    assert "checkpoint.keep=2" in text
