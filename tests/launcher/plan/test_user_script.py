"""`recipe=script`: from the words typed to the command that starts the user's file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_launcher.around import wrap as shared_script
from amp_launcher.around.script_source import Source
from amp_launcher.around.wrapper import Started
from launcher.config import request
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.record import from_json, to_json
from launcher.plan.resolve import resolve
from launcher.plan.user_script import tracker_ids
from launcher.probe.facts import Facts, Script
from launcher.script.render import render
from launcher.script.trainer_command import command, lines
from launcher.ssh.probe_client import probe
from tests.launcher.hosts import LAPTOP, TWO_A100

HERE = Script(path="/home/mei/project/train.py", name="script/train.py")
BARE = ("train.bare=true", "require_proof=false", "amp=o0")


def with_script(facts: Facts, script: Script = HERE) -> Facts:
    return dataclasses.replace(facts, scripts={"train.py": script})


def with_source(source: Source) -> Script:
    return dataclasses.replace(HERE, source=source)


ASKS = with_source(Source(asks=True))


def specs_of(*words: str) -> tuple[JobSpec, ...]:
    return request.to_specs(request.compose(request.split_flags(words)))


def plan_of(*words: str, facts: Facts = LAPTOP, script: Script = HERE) -> Plan:
    (spec,) = specs_of("recipe=script", "script=train.py", *words)
    return resolve(spec, with_script(facts, script))


def wrapped(plan: Plan, folder: Path) -> Started:
    """What the wrapper around the script reads in the run folder."""
    (folder / "plan.json").write_text(json.dumps(to_json(plan)))
    return shared_script.parse([f"run={folder}"], plan.framework)


@pytest.mark.parametrize(
    ("words", "switched"),
    [
        (("framework=tensorflow", "amp=o1"), "1"),
        (("framework=tensorflow", "amp=o1", "env.TF_ENABLE_ONEDNN_OPTS=0"), "0"),
        (("framework=tensorflow", "amp=o2"), None),
        (("framework=tensorflow", "amp=o0"), None),  # it computes what it does alone
        (("framework=tensorflow", "amp=o1", "train.precision=script"), "1"),
        (("framework=torch", "amp=o1"), None),
    ],
)
def test_tensorflows_rewrite_to_bfloat16_is_switched_on_for_cpus_where_tensorflow_leaves_it_off(
    words: tuple[str, ...], switched: str | None
) -> None:
    facts = dataclasses.replace(LAPTOP, packages={**LAPTOP.packages, "tensorflow": "2.21.0"})
    assert plan_of(*words, "device=cpu", facts=facts).env.get("TF_ENABLE_ONEDNN_OPTS") == switched


def test_the_wrapper_reads_the_level_the_file_and_its_arguments_in_the_run_folder(code: Path) -> None:
    plan = plan_of("amp=o2", "train.precision=script", "--", "--lr", "0.1", "data/")
    run = "run=/home/mei/launcher-runs/RUN_ID"
    assert command(plan) == ("/opt/venv/bin/python", "-m", "amp_launcher.torch.script", run)
    started = wrapped(plan, code)
    assert (started.chosen.settings.amp.level, started.arguments) == ("o2", ("--lr", "0.1", "data/"))
    assert (started.file, started.workdir) == (code / "script" / "train.py", Path("/home/mei/project"))
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20), max_size=4))
def test_arguments_behind_two_dashes_are_passed_on_byte_for_byte(code: Path, arguments: list[str]) -> None:
    assert wrapped(plan_of("--", *arguments), code).arguments == tuple(arguments)
    bare = plan_of(*BARE, "--", *arguments)
    assert command(bare)[2:] == tuple(arguments)
    assert bare.script
    line = next(line for line in render(bare).splitlines() if bare.script.file_in(bare.code_dir) in line)
    assert shlex.split(line)[2:] == arguments


def test_flags_and_verbs_behind_two_dashes_are_the_scripts() -> None:
    (spec,) = specs_of("recipe=script", "script=train.py", "--", "--help", "plan", "--", "-m", "amp=o9")
    assert spec.launch.arguments == ("--help", "plan", "--", "-m", "amp=o9")
    assert spec.command[-6:] == ("--", "--help", "plan", "--", "-m", "amp=o9")


def test_a_script_has_no_batch() -> None:
    plan = plan_of()
    assert (plan.settings["batch"], plan.settings["epochs"]) == (None, None)
    assert "batch" not in render(plan).split("set -u")[0]
    assert "LAUNCHER_WHO=script " in render(plan), "its end is reported as a script's"


def test_a_librarys_switch_is_planned_and_named() -> None:
    lightning = with_source(Source(library="lightning"))
    half = plan_of("amp.dtype=float16", facts=TWO_A100, script=lightning)
    assert (half.mechanism, half.precision.loss_scale) == ("lightning_precision", "dynamic")
    assert "amp reaches the script's library as PL_TRAINER_PRECISION=16-mixed and LT_PRECISION=16-mixed" in half.advice
    around = plan_of(facts=TWO_A100, script=lightning)
    assert around.mechanism == "autocast_around"
    assert "amp is applied around the script, which is left as it is" in around.advice
    decided = with_source(Source(library="lightning", decided="Trainer(precision=32)"))
    with pytest.raises(UsageError, match=r"the script sets Trainer\(precision=32\)"):
        plan_of("amp=o3", facts=TWO_A100, script=decided)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("compile=true", r"compile=true: a script compiles .* train.precision=script .*\(command line\)"),
        ("amp=o2", r"precision = Precision\(\)"),
        ("amp.dtype=float16", r"precision = Precision\(\)"),
    ],
)
def test_what_only_a_script_that_asks_can_apply_is_refused_for_others(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(word)
    for plan in (plan_of(word, "amp=o2", script=ASKS), plan_of(word, "amp=o2", "train.precision=script")):
        assert plan.mechanism == "half_model_fp32_masters"
        assert plan.settings["compile"] is (word == "compile=true")


@pytest.mark.parametrize(("words", "fails"), [((), False), (("require_proof=true",), True)])
def test_that_nothing_watches_a_static_graph_of_paddles_is_noted(words: tuple[str, ...], fails: bool) -> None:
    facts = dataclasses.replace(LAPTOP, packages={"paddle": "3.3.1"})
    static, plain = (
        plan_of("framework=paddle", "amp=o0", *words, facts=facts, script=with_source(source)).advice
        for source in (Source(static=True), Source())
    )
    (note,) = set(static) - set(plain)
    assert "static graphs (paddle.enable_static) are not observed, so nothing is proved" in note
    assert ("the run fails at the first of them" in note) is fails


@pytest.mark.parametrize(
    ("packages", "words", "framework", "note"),
    [
        ({"torch": "2"}, [], "torch", "found in train.py; framework=torch is assumed"),
        ({"torch": "2", "paddle": "3"}, [], "torch", "found in train.py; framework=torch is assumed"),
        (
            {"paddle": "3"},
            [],
            "paddle",
            "found in train.py; framework=paddle, the one that /opt/venv/bin/python on box has",
        ),
        ({}, [], "none", "and /opt/venv/bin/python on box has none, so nothing will be proved (framework=none)"),
        ({}, ["amp=o1", "train.precision=script"], "none", "so nothing will be proved (framework=none)"),
    ],
)
def test_a_script_that_shows_no_framework_gets_the_one_that_is_installed(
    packages: dict[str, str], words: list[str], framework: str, note: str
) -> None:
    plan = plan_of("amp=o0", *words, facts=dataclasses.replace(LAPTOP, packages=packages))
    assert plan.framework == plan.settings["framework"] == framework
    assert note in " ".join(plan.advice)
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan
    module = "amp_launcher.around.unobserved" if framework == "none" else f"amp_launcher.{framework}.script"
    assert command(plan)[2] == module


@pytest.mark.parametrize(
    ("packages", "words", "says"),
    [
        ({}, ["amp=o1"], "train.py, and /opt/venv/bin/python on box has none, so nothing can apply it; say amp=o0"),
        ({}, ["framework=torch"], "~/torch/bin/pip install torch"),
        ({"torch": "2"}, ["amp=o1", "framework=none"], "amp=o1: framework=none is a script without torch, tensorflow"),
        (
            {"tensorflow": "2", "paddle": "3"},
            [],
            "torch is not installed .* it has framework=tensorflow and framework=p",
        ),
    ],
)
def test_a_level_that_nothing_can_apply_and_an_open_choice_are_refused(packages, words, says) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(*words, *["amp=o0"] * ("amp=o1" not in words), facts=dataclasses.replace(LAPTOP, packages=packages))


def test_a_bare_script_without_a_framework_has_the_modes_of_one_that_is_not_bare() -> None:
    bare = ("framework=none", "train.bare=true", "require_proof=false")
    plans = [plan_of(*bare, *words) for words in (["amp=o0"], ["amp=o1", "train.precision=script"])]
    assert [plan.mechanism for plan in plans] == ["float32", "script"]
    with pytest.raises(UsageError, match="amp=o1: framework=none is a script without torch, tensorflow"):
        plan_of(*bare, "amp=o1")


def test_one_process_unless_more_are_asked_for() -> None:
    alone = plan_of(facts=TWO_A100)
    assert (alone.processes, "torch.distributed.run" in command(alone)) == (1, False)
    assert "train.processes=2 starts one for each" in " ".join(alone.advice)
    both = command(plan_of("train.processes=2", facts=TWO_A100))
    assert both[1:6] == ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def test_a_bare_script_starts_as_python_would_start_it() -> None:
    plan = plan_of("amp=o0", "train.bare=true", "require_proof=false", "--", "--lr", "1")
    script = f"{plan.code_dir}/script/train.py"
    assert command(plan) == ("/opt/venv/bin/python", script, "--lr", "1")
    assert "cd /home/mei/project || exit 1" in render(plan)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("from helper import go\nPrecision.from_env()\n")
    monkeypatch.chdir(folder)
    return folder


def test_the_prober_reads_the_script_and_its_inputs_and_the_snapshot_holds_it(project: Path) -> None:
    words = ("recipe=script", "script=train.py", "amp=o2", "workdir=run", "script.inputs=[sub,gone]")
    (spec,) = specs_of(*words, f"run_root={project}/runs")
    facts = probe([spec])
    assert facts.scripts["train.py"].source == Source(asks=True)
    assert facts.missing == ("gone",)
    assert {"script/train.py", "amp_launcher/around/script.py"} <= set(facts.code.files)
    assert resolve(spec, dataclasses.replace(facts, missing=())).mechanism == "half_model_fp32_masters"


@pytest.mark.parametrize(
    ("named", "says"),
    [("trian.py", "there is no such file; did you mean train.py"), ("sub", "is a folder; name the file in it")],
)
def test_a_script_that_is_not_there_is_refused_before_queueing(project: Path, named: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        probe(specs_of("recipe=script", f"script={named}"))


def test_a_package_of_our_name_beside_a_script_would_be_imported_for_ours(project: Path) -> None:
    (project / "recipes").mkdir()
    probe(specs_of("recipe=script", "script=train.py"))
    (project / "amp_launcher").mkdir()
    with pytest.raises(UsageError, match="would be imported instead of ours"):
        probe(specs_of("recipe=script", "script=train.py"))
    probe(specs_of("recipe=script", "script=train.py", *BARE))


def test_all_attempts_are_one_run_of_a_configured_tracker() -> None:
    plan = plan_of(*BARE, "env.WANDB_PROJECT=digits").bind("20260102-030405-calm-fox")
    assert tracker_ids(plan) == {"WANDB_RUN_ID": "20260102-030405-calm-fox", "WANDB_RESUME": "allow"}
    assert "\nexport WANDB_RUN_ID=20260102-030405-calm-fox\n" in render(plan)
    arm = dataclasses.replace(plan, arm="01")
    assert tracker_ids(arm)["WANDB_RUN_ID"] == "20260102-030405-calm-fox-01"
    assert tracker_ids(plan_of(*BARE)) == {}
    assert tracker_ids(plan_of(*BARE, "env.WANDB_RUN_ID=mine")) == {}
    assert "WANDB_RESUME" not in tracker_ids(plan_of(*BARE, "env.WANDB_RESUME=must"))


def test_each_block_of_a_comparison_has_an_empty_checkpoint_folder_of_its_own() -> None:
    plan = plan_of(*BARE, "script.resume_arguments=[--resume,'a b']").bind("20260102-030405-calm-fox")
    assert 'export LAUNCHER_CHECKPOINT_DIR="$LAUNCHER_RUN/checkpoints"\n' in render(plan)
    assert lines(plan)[0] == """[ "$LAUNCHER_ATTEMPT" = 1 ] || LAUNCHER_AGAIN=(--resume 'a b')"""
    arm = dataclasses.replace(plan, arm="01")
    assert 'export LAUNCHER_CHECKPOINT_DIR="$LAUNCHER_RUN/checkpoints/$LAUNCHER_ATTEMPT"\n' in render(arm)
    assert "LAUNCHER_AGAIN" not in render(arm)


RESTART = "restart.max=2"


def test_a_restart_that_would_find_no_checkpoint_is_told_beforehand() -> None:
    unsaved = dataclasses.replace(HERE, saves=False)
    (note,) = [note for note in plan_of(RESTART, script=unsaved).advice if "restart" in note]
    assert note == (
        "restart.max=2 starts nothing again without a checkpoint, and train.py names neither job.checkpoint_dir() nor "
        "LAUNCHER_CHECKPOINT_DIR; save there, or set script.resume_arguments"
    )
    resumes = (RESTART, "script.resume_arguments=[--resume]")
    for words in (
        resumes,
        (),
        (RESTART, "env.OUT=$LAUNCHER_CHECKPOINT_DIR"),
        (RESTART, "--", "$LAUNCHER_CHECKPOINT_DIR"),
    ):
        assert not [note for note in plan_of(*words, script=unsaved).advice if "restart" in note]
    assert not [note for note in plan_of(RESTART).advice if "restart" in note]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("print()", True),
        ("from amp_launcher.job import checkpoint_dir", False),
        ("LAUNCHER_CHECKPOINT_DIR = ''", False),
    ],
)
def test_whether_a_script_saves_is_read_in_its_modules_too(tmp_path: Path, module: str, told: bool) -> None:
    (tmp_path / "train.py").write_text("import torch, saving\n")
    (tmp_path / "saving.py").write_text(module)
    (spec,) = specs_of("recipe=script", f"script={tmp_path}/train.py", "gpus=0", RESTART)
    assert any("without a checkpoint" in note for note in resolve(spec, probe([spec])).advice) is told
