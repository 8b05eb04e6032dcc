"""From a configuration to a typed job: modes, presets, what a recipe fills in, values of files that people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_launcher import arguments
from amp_launcher.precision.levels import MODES, PRESETS
from amp_launcher.settings import Profile
from amp_launcher.typed import SettingsError
from launcher.config import request
from launcher.config.compose import Composer
from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of

REWRITE = "env.TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
ON_A100 = {
    "fp32": ("o0", "float32", False),
    "tf32": ("o0", "float32", True),
    "fp16-mixed": ("o1", "float16", True),
    "bf16-mixed": ("o1", "bfloat16", True),
    "fp16-true": ("o3", "float16", True),
    "bf16-true": ("o3", "bfloat16", True),
}
"""Level, dtype and TF32 of each mode."""
FORMATS = {
    "fp8": ("o2", "bfloat16", "fp8-tensorwise"),
    "mxfp8": ("o2", "bfloat16", "mxfp8"),
    "nvfp4": ("o2", "bfloat16", "nvfp4"),
}
"""Level, dtype and number format of linear layers' products."""


def planned(*words: str) -> list[Plan]:
    specs = request.to_specs(request.compose(request.split_flags(words, starts=True)))
    return [resolve(spec, TWO_A100) for spec in specs]


@pytest.mark.parametrize("name", ON_A100)
def test_a_mode_is_a_level_with_its_dtype_and_tf32_to_the_launcher_and_to_a_trainer(name: str) -> None:
    level, dtype, tf32 = ON_A100[name]
    (plan,) = planned(f"amp={name}")
    assert plan.precision is not None
    assert (plan.settings["amp"]["level"], plan.precision.tf32) == (level, tf32)
    assert plan.precision.dtype in (dtype, None) and (level == "o0" or plan.precision.dtype)
    assert (plan.name, plan.words[0]) == (f"mnist-{name}", f"amp={name}")
    assert plan.precision.loss_scale == ("dynamic" if name == "fp16-mixed" else "none")
    by_hand = arguments.parse([f"amp={name}"], "mnist", "torch").settings
    assert (by_hand.amp, by_hand.tf32) == ((training := spec_of(f"amp={name}").training).amp, training.tf32)
    with pytest.raises(SettingsError, match="with amp="):
        arguments.parse([f"amp={name}", f"amp.dtype={'float16' if 'bf16' in name else 'bfloat16'}"], "mnist", "torch")


@pytest.mark.parametrize("name", FORMATS)
def test_a_mode_may_be_a_level_with_a_number_format(name: str) -> None:
    amp = arguments.parse([f"amp={name}"], "gpt", "torch").settings.amp
    assert (amp.level, amp.dtype, amp.gemm, amp.asked) == (*FORMATS[name], name)
    assert [*ON_A100, *FORMATS, "none"] == list(MODES)


def test_swept_modes_are_the_names_of_cells() -> None:
    plans = planned("amp=fp32,bf16-mixed,o2", "amp.deny=[softmax]")
    assert [plan.swept for plan in plans] == [(("amp", "fp32"),), (("amp", "bf16-mixed"),), (("amp", "o2"),)]
    assert [plan.name for plan in plans] == ["mnist-fp32", "mnist-bf16-mixed", "mnist-o2"]
    assert [plan.settings["amp"]["deny"] for plan in plans] == [[], ["softmax"], ["softmax"]]


def test_a_cell_at_o0_is_without_what_the_words_say_of_half_precision_alone() -> None:
    full, half = planned("amp=o0,o1", "amp.dtype=float16", "loss_scale=dynamic", "loss_scale.init=256")
    assert (full.settings["loss_scale"]["init"], half.settings["loss_scale"]["init"]) == (65536.0, 256.0)
    kept, _ = planned("amp=o0,o1", "amp.dtype=float16", "loss_scale=none")
    assert kept.settings["loss_scale"]["mode"] == "none"


def test_a_profilers_keys_are_those_of_the_cells_that_have_one() -> None:
    asked = request.split_flags(["profile=none,framework", "profile.steps=3"], starts=True)
    none, framework = (spec.training.profile for spec in request.to_specs(request.compose(asked)))
    assert (none.tool, none.steps) == ("none", Profile().steps)
    assert (framework.tool, framework.steps) == ("framework", 3)


@pytest.mark.parametrize(
    "words",
    [
        ("script=train.py", "recipe=script", "train.bare=true", "framework=tensorflow"),
        ("cluster=slurm", "nodes=2"),
        ("visible_gpus=[0]",),
    ],
)
def test_what_can_be_is_not_refused(words: tuple[str, ...]) -> None:
    assert spec_of(*words).launch


def test_tf32_where_there_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="a CPU has no TF32; say tf32=false, or amp=fp32 for amp=tf32"):
        resolve(spec_of("amp=tf32"), LAPTOP)


def test_a_mode_overrides_a_users_defaults_and_may_be_one(tmp_path: Path) -> None:
    for text, words, tf32 in (
        ("amp: tf32\n", (), True),
        ("tf32: true\n", ("amp=fp32",), False),
        ("tf32: true\n", ("amp=bf16-mixed",), True),
    ):
        (tmp_path / "config.yaml").write_text(text)
        assert spec_of(*words, composer=Composer(config_dirs=[tmp_path])).training.tf32 is tf32


@pytest.mark.parametrize(
    "words",
    [
        f"framework=torch {REWRITE}_DENYLIST_ADD=Conv2D",
        f"framework=tensorflow {REWRITE}_LOG_PATH=/tmp/log",
        f"recipe=script script=train.py framework=tensorflow train.precision=script {REWRITE}_LEVEL=2",
    ],
    ids=["another framework", "a variable that converts nothing", "a script that rewrites by itself"],
)
def test_other_variables_of_the_graph_rewrite_are_passed_on(words: str) -> None:
    assert any(name in words for name in spec_of(*words.split()).launch.env)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("kind: slurm\ntime: 1:30:00\n", 'YAML reads 1:30:00 as 5400, a whole number: quote it, as "1:30:00" ('),
        ("kind: slurm\nqos: no\n", 'cluster.qos is text, and YAML reads no as false: quote it, as "no" ('),
        ("kind: slurm\naccount: 1.10\n", 'YAML reads 1.10 as 1.1, a number: quote it, as "1.10" ('),
        ("kind: slurm\npartitionn: x\n", "unknown key cluster.partitionn; did you mean cluster.partition?"),
        ("kind: sluurm\n", "cluster.kind=sluurm is not one of local, ssh, slurm; did you mean slurm?"),
    ],
)
def test_a_site_file_with_a_number_where_text_is_meant_is_refused(tmp_path: Path, yaml: str, says: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "site.yaml").write_text(yaml)
    with pytest.raises(UsageError) as error:
        spec_of("cluster=site", composer=Composer(config_dirs=[tmp_path]))
    assert says in str(error.value)
    assert str(error.value).endswith(f" ({tmp_path}/cluster/site.yaml:{yaml.count(chr(10))})")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_choice_and_its_values_can_be_changed(preset: str) -> None:
    level = "o2" if PRESETS[preset].mode in ("dynamic", "static") else "o1"
    assert spec_of(f"loss_scale={preset}", f"amp={level}").training.loss_scale == PRESETS[preset]
    assert spec_of(f"loss_scale={preset}", "loss_scale.growth=3.0").training.loss_scale.growth == 3.0


def test_the_recipe_fills_in_what_was_not_named() -> None:
    training = spec_of().training
    assert (training.batch, training.data.name, training.steps) == (128, "digits", None)
    assert training.epochs is not None
    assert spec_of("steps=5").training.epochs is None


def test_words_reach_the_trainer_key_by_key_with_the_level_as_a_mode() -> None:
    spec = spec_of("amp.level=o2", "checkpoint={every:5,keep:2}")
    assert spec.training.amp.level == "o2"
    assert {"amp=o2", "checkpoint.every=5", "checkpoint.keep=2"} <= set(spec.words)


def test_auto_is_null_where_the_launcher_decides() -> None:
    spec = spec_of("gpus=auto", "tf32=auto", "train.clip=auto")
    assert (spec.launch.gpus, spec.training.tf32, spec.training.train.clip) == (None, None, None)
