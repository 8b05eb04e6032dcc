"""What can be done about the precision of a user's file without touching it: the rules alone."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from recipes import script, script_source
from recipes.precision.levels import PRESETS, Amp
from recipes.script import LINES, NGC_TENSORFLOW1, ScriptSettings
from recipes.script_source import Source
from recipes.settings import Settings, with_recipe_defaults
from recipes.trainer import script as wrapper
from recipes.trainer import script_execution
from recipes.typed import SettingsError, plain

KERAS = Source(fits=True)
ASKS = Source(asks=True)
LIGHTNING, ACCELERATE, TRAINER = (Source(library=each) for each in ("lightning", "accelerate", "transformers"))


def settings(framework="torch", level="o1", **train):
    return Settings(
        recipe="script", framework=framework, amp=Amp(level=level), require_proof=False, train=ScriptSettings(**train)
    )


@pytest.mark.parametrize(
    ("framework", "level", "dtype", "device", "source", "mechanism"),
    [
        ("torch", "o0", "float32", "cpu", Source(), "float32"),
        ("torch", "o1", "bfloat16", "cpu", Source(), "autocast_around"),
        ("torch", "o1", "bfloat16", "cuda", Source(), "autocast_around"),
        *(("torch", "o1", "bfloat16", "cpu", each, "autocast_around") for each in (LIGHTNING, ACCELERATE, TRAINER)),
        (
            "torch",
            "o1",
            "bfloat16",
            "cpu",
            Source(library="lightning", decided="Trainer(precision=32)"),
            "autocast_around",
        ),
        ("torch", "o1", "float16", "cuda", LIGHTNING, "lightning_precision"),
        ("torch", "o3", "bfloat16", "cpu", LIGHTNING, "lightning_precision"),
        ("torch", "o3", "float16", "cuda", LIGHTNING, "lightning_precision"),
        ("torch", "o1", "float16", "cuda", ACCELERATE, "accelerate_mixed_precision"),
        ("torch", "o1", "float16", "cuda", TRAINER, "accelerate_mixed_precision"),
        ("torch", "o2", "float16", "cuda", ASKS, "half_model_fp32_masters"),
        ("torch", "o3", "bfloat16", "cpu", ASKS, "half_model"),
        ("tensorflow", "o1", "bfloat16", "cpu", Source(), "grappler"),
        ("tensorflow", "o2", "bfloat16", "cuda", Source(), "keras_policy"),
        ("tensorflow", "o2", "float16", "cuda", KERAS, "keras_policy"),
        ("paddle", "o0", "float32", "cpu", Source(), "float32"),
    ],
)
def test_what_can_be_applied_around_a_script_is(framework, level, dtype, device, source, mechanism):
    row = script.support(settings(framework, level), dtype, device, source)
    assert (row.mechanism, row.unsupported) == (mechanism, "")


@pytest.mark.parametrize(
    ("framework", "level", "dtype", "device", "source"),
    [
        ("torch", "o1", "float16", "cuda", Source()),
        ("torch", "o2", "bfloat16", "cuda", Source()),
        ("torch", "o3", "bfloat16", "cuda", Source()),
        ("tensorflow", "o1", "float16", "cuda", KERAS),
        ("tensorflow", "o2", "float16", "cuda", Source()),
        ("tensorflow", "o3", "float16", "cuda", KERAS),
        ("paddle", "o1", "float16", "cuda", Source()),
    ],
)
def test_what_cannot_be_applied_honestly_is_refused_with_the_lines_to_add(framework, level, dtype, device, source):
    row = script.support(settings(framework, level), dtype, device, source)
    assert row.mechanism == ""
    assert LINES[framework] in row.unsupported


@pytest.mark.parametrize("source", [Source(), LIGHTNING, ACCELERATE])
@pytest.mark.parametrize("precision", ["auto", "script"])
def test_weights_are_rounded_stochastically_by_the_lines_in_a_script_alone(source, precision):
    asked = Settings(
        recipe="script",
        framework="torch",
        amp=Amp(level="o3", rounding="stochastic"),
        train=ScriptSettings(precision=precision),
    )
    row = script.support(asked, "bfloat16", "cpu", source)
    assert "amp.rounding=stochastic can't be applied from outside the script" in row.unsupported
    assert LINES["torch"] in row.unsupported
    assert script.support(asked, "bfloat16", "cpu", ASKS).mechanism == "half_model_stochastic"


@pytest.mark.parametrize(
    ("level", "dtype", "device", "source", "reason"),
    [
        (
            "o1",
            "float16",
            "cpu",
            LIGHTNING,
            "Lightning runs bfloat16 where float16 is asked for on a CPU; say amp.dtype=",
        ),
        ("o1", "float16", "cpu", ACCELERATE, "accelerate runs float32 where float16 is asked for on a CPU"),
        ("o1", "float16", "cpu", TRAINER, "transformers' Trainer runs float32 where float16 is asked for on a CPU"),
        ("o2", "bfloat16", "cuda", LIGHTNING, "Lightning has no switch for amp=o2; say amp=o1"),
        (
            "o3",
            "bfloat16",
            "cuda",
            ACCELERATE,
            "has no switch for amp=o3 (the script can make its model half: model.to(",
        ),
        ("o3", "bfloat16", "cuda", TRAINER, "dtype=torch.bfloat16 in from_pretrained, with train.precision=script"),
    ],
)
def test_a_mode_without_a_switch_of_the_library_is_refused_with_its_name(level, dtype, device, source, reason):
    assert reason in script.support(settings("torch", level), dtype, device, source).unsupported


@pytest.mark.parametrize(
    ("text", "library", "decided"),
    [
        ("from lightning import Trainer\nTrainer(max_epochs=1)", "lightning", ""),
        ("import lightning as L\nL.Trainer(max_epochs=1)", "lightning", ""),
        ("import lightning.pytorch as pl\npl.Trainer()", "lightning", ""),
        ("import lightning.pytorch\nlightning.pytorch.Trainer()", "lightning", ""),
        ("from lightning import pytorch as pl\npl.Trainer(**settings)", "lightning", ""),
        ("import pytorch_lightning as pl\npl.Trainer(precision=16)", "lightning", "Trainer(precision=16)"),
        ("from lightning.fabric import Fabric\nFabric(precision='32-true')", "lightning", ""),
        (
            "from lightning import Trainer\nTrainer(precision=a.precision)",
            "lightning",
            "Trainer(precision=a.precision)",
        ),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(Net)", "lightning", "LightningCLI"),
        ("from lightning import LightningModule", "", ""),
        ("from accelerate import Accelerator\nAccelerator()", "accelerate", ""),
        ("from accelerate import Accelerator\nAccelerator(mixed_precision=None)", "accelerate", ""),
        ("from accelerate import Accelerator\nAccelerator(mixed_precision=a.precision)", "accelerate", ""),
        (
            "import accelerate\naccelerate.Accelerator(mixed_precision='no')",
            "accelerate",
            "Accelerator(mixed_precision='no')",
        ),
        ("from transformers import BertModel", "", ""),
        (
            "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('x'))",
            "transformers",
            "",
        ),
        ("from transformers import AutoModel\nfrom accelerate import Accelerator\nAccelerator()", "accelerate", ""),
        ("from .lightning import Trainer\nTrainer()", "", ""),
        ("from mine import Trainer\nTrainer(precision=16)", "", ""),
    ],
)
def test_a_scripts_text_shows_its_training_library_and_the_call_that_overrides_its_switch(text, library, decided):
    source = script_source.read(text)
    assert (source.library, source.decided) == (library, decided)


def test_a_call_that_overrides_the_switch_is_refused_with_the_argument_to_leave_out():
    asked = dataclasses.replace(settings(), amp=Amp(level="o1", dtype="float16"))
    source = Source(library="lightning", decided="Trainer(precision='32-true')")
    assert script.support(asked, "float16", "cuda", source).unsupported == (
        "the script sets Trainer(precision='32-true'), and Lightning then ignores PL_TRAINER_PRECISION; "
        'leave precision out of that call, or write precision="16-mixed" there and say train.precision=script'
    )
    cli = script.support(asked, "float16", "cuda", Source(library="lightning", decided="LightningCLI"))
    assert "pass `--trainer.precision=16-mixed` after --" in cli.unsupported


@pytest.mark.parametrize(
    ("source", "level", "given"),
    [
        (LIGHTNING, "o1", {"PL_TRAINER_PRECISION": "16-mixed", "LT_PRECISION": "16-mixed"}),
        (LIGHTNING, "o3", {"PL_TRAINER_PRECISION": "16-true", "LT_PRECISION": "16-true"}),
        (TRAINER, "o1", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        (ACCELERATE, "o1", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        (Source(asks=True, library="accelerate"), "o1", {}),
    ],
)
def test_float16_on_a_gpu_is_handed_over_by_the_librarys_variables(source, level, given):
    asked = dataclasses.replace(settings(), amp=Amp(level=level, dtype="float16"))
    found = script.resolve(asked, source, device="cuda", capability=(8, 0), environ={})
    assert script.handed_over(found) == given
    assert found.loss_scale.mode == ("none" if level == "o3" else "dynamic")
    if given and level == "o1":
        odd = dataclasses.replace(asked, loss_scale=PRESETS["static"])
        with pytest.raises(SettingsError, match="the script's library scales the loss by its own rule"):
            script.resolve(odd, source, device="cuda", capability=(8, 0), environ={})


def test_amp_deny_is_for_scripts_whose_library_has_a_switch_and_is_observed_only():
    asked = dataclasses.replace(settings(), amp=Amp(level="o1", deny=("softmax",)))
    found = script.resolve(asked, TRAINER, device="cpu", capability=None, environ={})
    assert (found.mechanism, found.deny, found.lists) == ("accelerate_mixed_precision", ("softmax",), "observed")
    own = dataclasses.replace(asked, train=ScriptSettings(precision="script"))
    assert script.resolve(own, Source(), device="cpu", capability=None, environ={}).lists == "observed"
    assert script.resolve(own, ASKS, device="cpu", capability=None, environ={}).lists == "applied"
    for source, lists in ((Source(), "refused"), (TRAINER, "observed")):
        around = script.resolve(settings(), source, device="cpu", capability=None, environ={})
        assert (around.mechanism, around.lists) == ("autocast_around", lists)
    assert "can't be applied from outside" in script.support(asked, "bfloat16", "cpu", Source()).unsupported
    keeps = dataclasses.replace(asked, amp=Amp(level="o1", keep_fp32=("head",)))
    assert "can't be applied from outside" in script.support(keeps, "bfloat16", "cpu", TRAINER).unsupported


def test_a_hole_of_the_legality_table_stays_one_even_where_the_script_asks():
    row = script.support(dataclasses.replace(settings("tensorflow", "o2"), xla=True), "bfloat16", "cpu", ASKS)
    assert "XLA" in row.unsupported


def test_xla_around_a_script_on_a_cpu_would_do_nothing():
    asked = dataclasses.replace(settings("tensorflow", "o0"), xla=True)
    assert "does nothing around a script on a CPU" in script.support(asked, "float32", "cpu", Source()).unsupported
    assert script.support(asked, "float32", "cuda", Source()).unsupported == ""


@pytest.mark.parametrize(("level", "mechanism"), [("o0", "ngc_environment"), ("o1", "ngc_environment"), ("o2", "")])
def test_variables_carry_a_level_in_nvidias_tensorflow_1_and_in_no_other(level, mechanism):
    asked = settings("tensorflow", level, bare=True)
    assert script.support(asked, "float16", "cuda", Source(), ngc_tensorflow1=True).mechanism == mechanism
    elsewhere = script.support(asked, "float16", "cuda", Source())
    assert elsewhere.mechanism == ("float32" if level == "o0" else "")
    assert len(NGC_TENSORFLOW1) == 2


def test_nobody_applies_anything_to_a_bare_script_but_the_script():
    assert "nothing would apply amp=o1" in script.support(settings(bare=True), "bfloat16", "cpu", ASKS).unsupported
    own = settings(bare=True, precision="script")
    assert script.support(own, "bfloat16", "cpu", Source()).mechanism == "script"


@pytest.mark.parametrize(
    ("text", "asks", "fits"),
    [
        ("p = Precision.from_env()", True, False),
        ("p = precision.Precision.from_env(environ)", True, False),
        ("# Precision.from_env()\nx = 'Precision.from_env()'", False, False),
        ("model.compile(opt)\nmodel.fit(data)", False, True),
        ("model.compile(opt)\nwith tf.GradientTape() as tape: pass\nmodel.fit(data)", False, False),
        ("model.compile(opt, auto_scale_loss=False)\nmodel.fit(data)", False, False),
        ("class M(Model):\n  def train_step(self, data): pass\nm.compile()\nm.fit()", False, False),
        ("re.compile('x')", False, False),
        ("print 'python 2'", False, False),
        ("x = '\0'", False, False),
    ],
)
def test_the_text_of_a_script_tells_who_applies_its_precision_and_who_scales_its_loss(text, asks, fits):
    assert script_source.read(text) == Source(asks=asks, fits=fits)


def test_the_text_of_a_script_in_paddle_tells_whether_it_builds_static_graphs():
    assert script_source.read("import paddle\npaddle.enable_static()").static
    assert not script_source.read("import paddle\npaddle.disable_static()  # not enable_static()").static


@pytest.mark.parametrize("key", ["batch", "epochs", "steps", "seed", "accumulate"])
def test_what_a_script_decides_by_itself_cannot_be_set(key):
    with pytest.raises(SettingsError, match=f"{key}=7: recipe=script decides that by itself"):
        with_recipe_defaults(dataclasses.replace(settings(), **{key: 7}), script.RECIPE)


@pytest.mark.parametrize(
    ("train", "proof", "said"),
    [
        ({"processes": 0}, True, "train.processes=0 must be at least 1"),
        ({"bare": True}, True, "say require_proof=false"),
    ],
)
def test_a_script_that_could_not_be_started_is_refused(train, proof, said):
    with pytest.raises(SettingsError, match=said):
        script.check(dataclasses.replace(settings(**train), require_proof=proof))


def test_torchrun_starts_scripts_in_torch_alone():
    with pytest.raises(SettingsError, match=r"train\.processes=2: torchrun"):
        script.check(settings("tensorflow", processes=2))


def methods_of(path, name):
    (own,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name for node in own.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("framework", LINES)
def test_the_lines_to_add_name_what_is_there(framework):
    recipes = Path(script.__file__).parent
    methods = methods_of(recipes / f"{framework}_/precision/base.py", "Precision")
    if framework != "torch":
        methods |= methods_of(recipes / "trainer/strategy.py", "Strategy")
    named = set(re.findall(r"\b[Pp]recision\.(\w+)\(", LINES[framework]))
    assert {"from_env", "forward", "backward", "step", "update"} <= named <= methods


@pytest.mark.parametrize("more", [(), ("workdir=.",), ("--", "--lr", "1")])
def test_a_typed_script_runs_whatever_plan_the_run_folder_has(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    for name in ("planned.py", "typed.py"):
        (tmp_path / name).touch()
    planned = {"file": "planned.py", "workdir": "/", "arguments": ["--planned"]}
    values = plain(settings(level="o0"))
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 2, "settings": values, "script": planned}))
    started = wrapper.parse([f"run={tmp_path}", "script=typed.py", *more], "torch")
    assert (started.file.name, started.workdir, started.arguments) == (
        "typed.py",
        tmp_path,
        more[1:] if "--" in more else (),
    )
    started = wrapper.parse([f"run={tmp_path}"], "torch")
    assert (started.file.name, str(started.workdir), started.arguments) == ("planned.py", "/", ("--planned",))


@pytest.mark.parametrize(
    ("path", "folder", "advised"),
    [("data/x", "a-run/work", True), ("/no/such", "a-run/work", False), ("data/x", "typed", False)],
)
def test_a_missing_file_in_a_folder_of_the_runs_own_is_reported_with_script_inputs(
    tmp_path, monkeypatch, path, folder, advised
):
    (tmp_path / "train.py").write_text(f"open({path!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_RUN_ID", "a-run")
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [""])
    code, failure, _ = script_execution.execute(tmp_path / "train.py", (), tmp_path / folder, {})
    assert code and failure.startswith(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    assert ("if it reads data, script.inputs=[data] links it there" in failure) is advised
