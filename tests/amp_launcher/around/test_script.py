"""What can be done about the precision of a user's file without touching it: the rules alone."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amp_launcher.around import script, script_execution
from amp_launcher.around import wrap as wrapper
from amp_launcher.around.script import LINES, NGC_TENSORFLOW1, ScriptSettings
from amp_launcher.around.script_source import Source
from amp_launcher.precision.levels import PRESETS, Amp
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, plain

PLAIN, ASKS, KERAS = Source(), Source(asks=True), Source(fits=True)
LIGHTNING, ACCELERATE, TRAINER = (Source(library=name) for name in ("lightning", "accelerate", "transformers"))


def settings(framework="torch", level="o1", *, amp=None, xla=False, **train):
    return Settings(
        recipe="script",
        framework=framework,
        amp=Amp(level=level, **(amp or {})),
        xla=xla,
        require_proof=False,
        train=ScriptSettings(**train),
    )


def unsupported(asked, dtype, device, source):
    row = script.support(asked, dtype, device, source)
    assert row.mechanism == ""
    return row.unsupported


@pytest.mark.parametrize(
    ("framework", "level", "dtype", "device", "source", "mechanism"),
    [
        ("torch", "o0", "float32", "cpu", PLAIN, "float32"),
        (
            "torch",
            "o1",
            "bfloat16",
            "cpu",
            Source(library="lightning", decided="Trainer(precision=32)"),
            "autocast_around",
        ),
        ("torch", "o2", "float16", "cuda", ASKS, "half_model_fp32_masters"),
        ("torch", "o3", "bfloat16", "cpu", ASKS, "half_model"),
        ("tensorflow", "o1", "bfloat16", "cpu", PLAIN, "grappler"),
        ("tensorflow", "o2", "bfloat16", "cuda", PLAIN, "keras_policy"),
        ("tensorflow", "o2", "float16", "cuda", KERAS, "keras_policy"),
        ("paddle", "o0", "float32", "cpu", PLAIN, "float32"),
    ],
)
def test_what_can_be_applied_around_a_script_is(framework, level, dtype, device, source, mechanism):
    row = script.support(settings(framework, level), dtype, device, source)
    assert (row.mechanism, row.unsupported) == (mechanism, "")


@pytest.mark.parametrize(
    ("framework", "level", "dtype", "source", "why"),
    [
        ("torch", "o1", "float16", PLAIN, "float16 needs a scaled loss"),
        ("torch", "o2", "bfloat16", PLAIN, "amp=o2 casts the model"),
        ("torch", "o3", "bfloat16", PLAIN, "amp=o3 casts the model"),
        (
            "tensorflow",
            "o1",
            "float16",
            KERAS,
            "float16 needs a scaled loss: if the script scales it itself, say train.precision=script; ",
        ),
        ("tensorflow", "o2", "float16", PLAIN, "float16 needs a scaled loss (Keras scales it at amp=o2"),
        ("tensorflow", "o3", "float16", KERAS, "float16 needs a scaled loss"),
        ("paddle", "o1", "float16", PLAIN, "no precision can be applied from outside a script in Paddle"),
    ],
)
def test_what_cannot_be_applied_honestly_is_refused_with_the_lines_to_add(framework, level, dtype, source, why):
    refused = unsupported(settings(framework, level), dtype, "cuda", source)
    assert why in refused and LINES[framework] in refused


@pytest.mark.parametrize(
    ("level", "dtype", "device", "source", "advice"),
    [
        ("o1", "float16", "cpu", LIGHTNING, "runs bfloat16 where float16 is asked for on a CPU; say amp"),
        ("o1", "float16", "cpu", ACCELERATE, "accelerate runs float32 where float16 is asked for on a CPU"),
        ("o1", "float16", "cpu", TRAINER, "transformers' Trainer runs float32 where float16 is asked for on a CPU"),
        ("o2", "bfloat16", "cpu", ACCELERATE, "  # before accelerator.prepare\n"),
        ("o2", "bfloat16", "cuda", LIGHTNING, "Lightning has no switch for amp=o2; say amp=o1"),
        ("o3", "bfloat16", "cuda", ACCELERATE, "for amp=o3 (the script can make its model half: model.to("),
        ("o3", "bfloat16", "cuda", TRAINER, "dtype=torch.bfloat16 in from_pretrained, with train.precision=script"),
    ],
)
def test_a_mode_without_a_switch_of_the_library_is_refused_with_advice(level, dtype, device, source, advice):
    assert advice in unsupported(settings("torch", level), dtype, device, source)


def test_a_call_that_overrides_the_switch_is_refused_with_the_argument_to_leave_out():
    asked = settings(amp={"dtype": "float16"})
    source = Source(library="lightning", decided="Trainer(precision='32-true')")
    assert unsupported(asked, "float16", "cuda", source) == (
        "the script sets Trainer(precision='32-true'), and Lightning then ignores PL_TRAINER_PRECISION; "
        'leave precision out of that call, or write precision="16-mixed" there and say train.precision=script'
    )
    cli = Source(library="lightning", decided="LightningCLI")
    assert "pass `--trainer.precision=16-mixed` after --" in unsupported(asked, "float16", "cuda", cli)
    assert unsupported(settings(level="o2"), "bfloat16", "cpu", cli) == (
        "Lightning has no switch for amp=o2; say amp=o1, or pass `--trainer.plugins=amp_launcher.torch.libraries."
        "lightning_precision.LightningPrecision` after -- and say train.precision=script"
    )


@pytest.mark.parametrize(
    ("source", "level", "variables"),
    [
        (LIGHTNING, "o1", {"PL_TRAINER_PRECISION": "16-mixed", "LT_PRECISION": "16-mixed"}),
        (LIGHTNING, "o3", {"PL_TRAINER_PRECISION": "16-true", "LT_PRECISION": "16-true"}),
        (TRAINER, "o1", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        (ACCELERATE, "o1", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        (Source(asks=True, library="accelerate"), "o1", {}),
    ],
)
def test_float16_on_a_gpu_is_handed_over_by_the_librarys_variables(source, level, variables):
    asked = settings(level=level, amp={"dtype": "float16"})
    precision = script.resolve(asked, source, device="cuda", capability=(8, 0), environ={})
    assert script.handed_over(precision) == variables
    assert precision.loss_scale.mode == ("none" if level == "o3" else "dynamic")
    if variables and level == "o1":
        odd = dataclasses.replace(asked, loss_scale=PRESETS["static"])
        with pytest.raises(SettingsError, match="the script's library scales the loss by its own rule"):
            script.resolve(odd, source, device="cuda", capability=(8, 0), environ={})


def test_amp_deny_is_for_scripts_whose_library_has_a_switch_and_is_observed_only():
    def mode(source, precision="auto", **amp):
        asked = settings(amp=amp, precision=precision)
        resolved = script.resolve(asked, source, device="cpu", capability=None, environ={})
        return resolved.mechanism, resolved.lists

    denied = {"deny": ("softmax",)}
    assert mode(TRAINER, **denied) == ("accelerate_mixed_precision", "observed")
    assert mode(PLAIN, "script", **denied)[1] == "observed"
    assert mode(ASKS, "script", **denied)[1] == "applied"
    assert (mode(PLAIN), mode(TRAINER)) == (("autocast_around", "refused"), ("autocast_around", "observed"))
    for amp, source in ((denied, PLAIN), ({"keep_fp32": ("head",)}, TRAINER)):
        assert "can't be applied from outside" in unsupported(settings(amp=amp), "bfloat16", "cpu", source)


def test_low_precision_products_are_for_a_script_that_asks_and_has_the_launcher_around_it():
    gemm = {"gemm": "fp8-rowwise"}
    assert script.support(settings(amp=gemm), "bfloat16", "cuda", ASKS).mechanism == "autocast"
    for asked, source in ((settings(amp=gemm), PLAIN), (settings(amp=gemm, bare=True), ASKS)):
        refused = unsupported(asked, "bfloat16", "cuda", source)
        assert "amp.gemm=fp8-rowwise converts the model's layers, which only the script can do" in refused


@pytest.mark.parametrize(
    ("framework", "source", "typed", "expected"),
    [
        ("torch", PLAIN, None, None),
        ("torch", PLAIN, False, False),
        ("torch", ASKS, None, True),
        ("tensorflow", KERAS, None, True),
    ],
)
def test_tf32_is_left_to_a_torch_script_that_does_not_ask_unless_it_is_typed(framework, source, typed, expected):
    asked = dataclasses.replace(settings(framework, "o2" if framework == "tensorflow" else "o1"), tf32=typed)
    assert script.resolve(asked, source, device="cuda", capability=(8, 0), environ={}).tf32 is expected


def test_xla_on_a_cpu_is_refused_even_where_the_script_asks_and_around_one_it_would_do_nothing():
    assert "XLA" in unsupported(settings("tensorflow", "o2", xla=True), "bfloat16", "cpu", ASKS)
    asked = settings("tensorflow", "o0", xla=True)
    assert "does nothing around a script on a CPU" in unsupported(asked, "float32", "cpu", PLAIN)
    assert script.support(asked, "float32", "cuda", PLAIN).unsupported == ""


@pytest.mark.parametrize(("level", "mechanism"), [("o0", "ngc_environment"), ("o1", "ngc_environment"), ("o2", "")])
def test_variables_carry_a_level_in_nvidias_tensorflow_1_and_in_no_other(level, mechanism):
    asked = settings("tensorflow", level, bare=True)
    assert script.support(asked, "float16", "cuda", PLAIN, ngc_tensorflow1=True).mechanism == mechanism
    elsewhere = script.support(asked, "float16", "cuda", PLAIN)
    assert elsewhere.mechanism == ("float32" if level == "o0" else "")
    assert len(NGC_TENSORFLOW1) == 2


def test_nobody_applies_anything_to_a_bare_script_but_the_script():
    assert "nothing would apply amp=o1" in unsupported(settings(bare=True), "bfloat16", "cpu", ASKS)
    own = settings(bare=True, precision="script")
    assert script.support(own, "bfloat16", "cpu", PLAIN).mechanism == "script"


def test_what_a_framework_lacks_is_advised_where_the_error_is_of_it_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    assert "which does the same" in script.instead(AttributeError(f"no attribute '{script.REWRITE}'"))
    others = AttributeError("no attribute 'rewrite'"), ValueError(script.REWRITE), TypeError("dtypes don't all match")
    assert [script.instead(other) for other in others] == ["", "", ""]


def methods_of(path, name):
    (own,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name for node in own.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("framework", LINES)
def test_the_lines_to_add_name_what_is_there(framework):
    root = Path(script.__file__).parents[1]
    methods = methods_of(root / framework / "precision/calls.py", "Precision")
    named = set(re.findall(r"\b[Pp]recision\.(\w+)\(", LINES[framework]))
    assert {"backward", "step"} <= named <= methods


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
    ("entry", "checkout", "found"),
    [
        ("/home/mei/work/src", "/home/mei/work", "/snapshot/src"),
        ("/home/mei/work", "/home/mei/work", "/snapshot"),
        ("/home/mei/work2/src", "/home/mei/work", "/home/mei/work2/src"),
        ("/usr/lib/python3", None, "/usr/lib/python3"),
    ],
)
def test_a_path_into_the_checkout_is_one_into_the_snapshot_and_others_stay(entry, checkout, found):
    assert wrapper._in_snapshot(entry, checkout, "/snapshot") == found


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_the_wrappers_before_the_dashes_and_the_scripts_after_them(word, capsys):
    assert wrapper.main("torch", [word], lambda started: None) == 0
    assert "script=FILE" in capsys.readouterr().out
    assert wrapper.main("torch", ["--", word], lambda started: None) == 2
    assert "script=FILE is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        ("data/x", "a-run/work", "data"),
        ("../data/x", "a-run/work", "../data"),
        ("/no/such", "a-run/work", ""),
        ("data/x", "typed", ""),
    ],
)
def test_a_missing_file_in_a_folder_of_the_runs_own_is_reported_with_script_inputs(
    tmp_path, monkeypatch, path, folder, name
):
    (tmp_path / "train.py").write_text(f"open({path!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_RUN_ID", "a-run")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [""])
    inputs = {f"given/deep/{name}": str(tmp_path / "train.py") for name in "ab"}
    for _ in range(2):  # a later attempt finds the links
        code, failure, _ = script_execution.execute(tmp_path / "train.py", (), tmp_path / folder, inputs)
    assert {name: os.readlink(tmp_path / folder / name) for name in inputs} == inputs
    assert code and failure.startswith(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    advice = f"if it reads {name}, script.inputs=[{name}] links it there; if it writes there, it has to make the folder"
    assert (advice in failure) is bool(name)


_MODULE = """
import multiprocessing
from .deep.layers import width

def double(number):
    return number * width

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(__package__, pool.map(double, [21]))
"""


def test_a_file_with_relative_imports_runs_as_a_module_of_its_package(tmp_path):
    package = tmp_path / "outer" / "inner"
    for folder in (package.parent, package, package / "deep"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "deep" / "layers.py").write_text("from ...sizes import width\n")
    (package.parent / "sizes.py").write_text("width = 2\n")
    (package / "logging.py").write_text("raise Exception('a module beside it shadows the standard library')\n")
    (package / "train.py").write_text(_MODULE)
    start = (
        f"from pathlib import Path; from amp_launcher.around.script_execution import execute; import sys; "
        f"sys.exit(execute(Path({str(package / 'train.py')!r}), (), Path({str(tmp_path)!r}), {{}})[0])"
    )
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "outer.inner [42]\n"), ended.stderr


def test_the_reason_of_an_exception_without_a_text_is_its_name(tmp_path):
    (tmp_path / "train.py").write_text("assert not __name__\n")
    done = subprocess.run([sys.executable, "-c", EXECUTE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "AssertionError\n"


def test_the_reason_is_in_one_line_and_of_another_process_the_last_of_its_traceback():
    trace = "Original Traceback (most recent call last):\n  File 'a'\n"
    for error, reason in (
        (ValueError(f"Caught it in worker 0.\n{trace}ValueError: bad row\n"), "ValueError: bad row"),
        (RuntimeError(f"\n\n-- Process 0:\n{trace}KeyError: 'a'\n"), "RuntimeError: KeyError: 'a'"),
        (RuntimeError("Error(s) in loading:\n\tMissing key: a"), "RuntimeError: Error(s) in loading: Missing key: a"),
    ):
        assert script_execution._in_a_line(error) == reason


EXECUTE = """
import pathlib, sys
from amp_launcher.around.script_execution import execute
folder = pathlib.Path(sys.argv[1])
print(execute(folder / "train.py", (), folder, {})[1])
"""
