"""Comparisons as values: their arms, their plan and the text of their script."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from amp_launcher.loop.proof import choose_steps
from amp_launcher.metrics import warm_up
from launcher.compare import comparison
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.spec import make
from launcher.config.sweep import by_level, cells
from launcher.containers.description import User
from launcher.containers.runtime import Runtime
from launcher.errors import UsageError
from launcher.executors.plan_changes import changes
from launcher.plan import record
from launcher.plan.model import Compare, ContainerPlan
from launcher.plan.resolve import resolve
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord
from launcher.script import comparison as comparison_script
from launcher.script import render
from launcher.ssh.probe_client import probe_each
from launcher.ui import summary
from tests import golden
from tests.launcher.hosts import LAPTOP, TWO_A100
from tests.launcher.plan.test_plan import script_of

GOLDEN = Path(__file__).parents[1] / "golden"

CONTAINED = ContainerPlan(
    runtime=Runtime(kind="apptainer", version=(1, 4, 5)), image="x.sif", asked="x", user=User(uid=1, gid=1, name="mei")
)


def specs(*words):
    return [make(cell) for cell in by_level(cells(Composer(), [parse(word) for word in words]))]


def planned(*words, how=None, facts=LAPTOP):
    """The comparison of the jobs that the words spell."""
    jobs, how = specs(*words), how or Compare()
    comparison.check_arms(jobs)
    return comparison.make([resolve(comparison.settled(spec, how), facts) for spec in jobs], how)


def test_rounds_go_there_and_back_and_have_each_arm_once():
    assert comparison_script.order(["A", "B", "C"], 3) == ["A", "B", "C", "C", "B", "A", "A", "B", "C"]


def test_keys_of_the_comparison_are_taken_out_of_the_words():
    how, rest = comparison.split_flags(["amp=o0,o1", "compare.rounds=7", "+compare.tolerance=0.1", "batch=8"])
    assert (how, rest) == (Compare(rounds=7, tolerance=0.1), ["amp=o0,o1", "batch=8"])


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("compare.round=7", "unknown key compare.round; did you mean compare.rounds?"),
        ("compare.rounds=many", "compare.rounds=many should be a whole number"),
        ("compare.rounds=0", "compare.rounds=0 must be at least 1"),
        ("compare.steps=3", "compare.steps=3 must be at least 4"),
        ("compare.rounds=1001", "compare.rounds=1001 must be at most 1000"),
        ("compare.cool_down=-1", "compare.cool_down=-1 must be at least 0"),
        ("compare.tolerance=-0.1", "compare.tolerance=-0.1 must be at least 0"),
    ],
)
def test_wrong_keys_of_the_comparison_are_refused(word, complaint):
    with pytest.raises(UsageError, match=complaint.replace("?", r"\?")):
        comparison.split_flags([word])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["amp=o1"], "compare needs arms to compare"),
        (
            ["recipe=script", "script=x.py", "amp=o0,o1", "train.bare=true", "require_proof=false"],
            r"train\.bare=true: nothing counts the steps of a bare script",
        ),
        (
            ["recipe=script", "script=x.py", "amp=o0,o1", "workdir=."],
            r"workdir=\.: each block of a comparison starts in a new folder",
        ),
        (["seed=1,2"], r"seed can't differ between the arms .*\(1 and 2\): arms begin with the same weights"),
        (["data=digits,synthetic"], r"data can't differ between the arms .*\(digits and synthetic\): arms are trained"),
        (
            ["cluster=slurm", "cluster.cpus=1,2"],
            r"cluster\.cpus can't differ between the arms .*\(1 and 2\): arms run one",
        ),
        (["cluster=slurm,local"], r"^cluster can't differ between the arms .*\(slurm and local\): arms run one"),
        (
            ["run_root=choice(/a,/b)"],
            r"run_root can't differ between the arms .*\(/a and /b\): a comparison is one run",
        ),
        (["wait=true,false"], r"wait can't differ between the arms .*\(true and false\): a comparison is one run"),
        (["gpus=0,1"], "gpus can't differ between the arms .*: arms run one after another in the same place"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(words, complaint):
    with pytest.raises(UsageError, match=complaint):
        comparison.check_arms(specs(*words))


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("amp=o1", r"list several values, as amp=o0,o1,o2 \(the first is the control\)$"),
        ("env.A=a,b", r"env\.A=a,b is one text, env\.A=choice\(\.\.\.\) lists several$"),
    ],
)
def test_words_that_list_no_arms_are_refused_with_the_way_to(word, complaint):
    with pytest.raises(UsageError, match=complaint):
        comparison.check_listed(*cells(Composer(), [parse(word)]))
    comparison.check_listed(cells(Composer(), [parse(word), parse("batch=8,16")])[0])


@pytest.mark.parametrize("word", ["steps=10", "epochs=2", "checkpoint.every=5", "checkpoint={every: 5}"])
def test_what_a_comparison_decides_itself_is_refused(word):
    with pytest.raises(UsageError, match=f"{word}: a comparison measures compare.rounds blocks of compare.steps steps"):
        comparison.check_words([parse(word)])


@pytest.mark.parametrize(
    ("words", "dropped"),
    [
        (("amp=o0,o1,o2", "amp.dtype=float16"), "amp.dtype=float16"),
        (("amp=o0,o2", "loss_scale=dynamic", "amp.dtype=float16"), "loss_scale=dynamic amp.dtype=float16"),
        (("amp=o0,o2", "loss_scale.init=8", "loss_scale=static", "amp.dtype=float16"), "loss_scale.init=8"),
        (("amp=o0,o1", "amp.deny=[linear]", "amp.keep_fp32=[head]"), "amp.deny=[linear] amp.keep_fp32=[head]"),
    ],
)
def test_settings_of_half_precision_leave_o0_alone_with_a_note(words, dropped):
    plan = planned(*words)
    control, *others = plan.arms
    assert (control.settings["amp"]["level"], control.settings["amp"]["dtype"]) == ("o0", "auto")
    assert control.settings["loss_scale"]["mode"] == "auto"
    assert not control.settings["amp"]["deny"]
    assert not any(word.startswith(("amp.", "loss_scale")) for word in control.words)
    for part in dropped.split():
        assert all(part.partition("=")[0] in " ".join(other.words) for other in others if "." in part.partition("=")[0])
    (note,) = [line for line in plan.advice if line.startswith("amp=o0 is float32, and takes none of")]
    assert dropped.split()[0] in note


def test_what_was_typed_for_o0_alone_is_refused_as_before():
    with pytest.raises(UsageError, match=r"amp\.dtype=float16 with amp=o0: o0 is float32"):
        specs("amp=o0", "amp.dtype=float16")


def test_a_block_has_a_step_that_is_timed_whatever_is_observed():
    for steps in range(4, 30):
        for seed in range(20):
            assert set(range(1 + warm_up(steps), steps + 1)) - set(choose_steps(steps, seed)), (steps, seed)


def test_a_block_too_short_for_steps_taken_several_at_once_is_refused():
    (spec,) = specs("framework=tensorflow", "steps_per_execution=10")
    with pytest.raises(UsageError, match=r"compare\.steps=39: with steps_per_execution=10 a block needs at least 40"):
        comparison.settled(spec, Compare(steps=39))
    assert comparison.settled(spec, Compare(steps=40)).training.steps == 200


def test_an_arm_is_the_job_it_would_be_by_itself_but_for_its_length():
    made = planned("amp=o0,o2", "batch=64", how=Compare(rounds=3, steps=7))
    alone = resolve(specs("amp=o2", "batch=64")[0], LAPTOP)
    arm = made.arms[1]
    assert arm.words == alone.words
    changed = {key for key in arm.settings if arm.settings[key] != alone.settings[key]}
    assert changed == {"steps", "epochs", "checkpoint"}
    assert (arm.settings["steps"], arm.settings["checkpoint"]["stop_every"]) == (21, 7)
    assert comparison.label(arm) == "amp=o2"


def test_nothing_of_one_arms_environment_reaches_another():
    made = planned("amp=o0,o2", "env.ONLY_HERE=x")
    assert made.env == {}
    assert "ONLY_HERE" not in render.render(made)
    assert "ONLY_HERE" in render.render(made.arms[0])


def test_a_script_is_ended_in_each_arm_after_a_block_and_the_arguments_of_one_are_not_those_of_all(tmp_path):
    (tmp_path / "train.py").write_text("import torch")
    words = ("recipe=script", f"script={tmp_path / 'train.py'}", f"run_root={tmp_path / 'runs'}", "amp=o0")
    jobs = specs(*words, "env.A=choice(1,2)")
    plans = [resolve(comparison.settled(spec, Compare(steps=7)), *probe_each([spec])) for spec in jobs]
    made = comparison.make(plans, Compare(steps=7))
    assert {arm.script and (arm.script.block, arm.script.workdir) for arm in made.arms} == {(7, "")}
    assert [line.split(";")[0] for line in made.advice if "folder" in line] == [
        "each block starts in an empty folder of its own"
    ]
    with_arguments = [
        dataclasses.replace(plan, script=dataclasses.replace(plan.script, arguments=("--lr", lr)))
        for plan, lr in zip(plans, ("0.1", "0.2"), strict=True)
    ]
    assert summary.request_of(decode(PlanRecord, record.to_json(comparison.make(with_arguments, Compare())))[0]) == (
        "compare-script (env.A=1) (env.A=2)"
    )
    alike = comparison.make(with_arguments[:1] * 2, Compare())
    assert alike.script.arguments == ("--lr", "0.1")


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("script=x.py",), True),
        (("script=x.py", "script.inputs=[data]"), False),
        (("script=image:main.py", "container=docker", "image=x"), False),
    ],
)
def test_a_block_of_a_script_starts_in_an_empty_folder_unless_it_says_what_it_reads_or_is_in_an_image(words, own):
    (spec,) = specs("recipe=script", "amp=o0", *words)
    launch = comparison.settled(spec, Compare()).launch
    assert (launch != spec.launch) is own
    assert [note.partition(";")[0] for note in launch.notes] == [
        "each block starts in an empty folder of its own"
    ] * own


def test_its_plan_survives_being_written_and_read():
    made = planned("amp=o0,o2").bind("20260102-030405-brave-otter")
    assert record.from_json(json.loads(json.dumps(record.to_json(made)))) == made
    assert made.arms[1].run_dir == "/home/mei/launcher-runs/20260102-030405-brave-otter/arms/01"
    assert made.arms[1].code_dir == made.code_dir


def test_the_plan_of_a_plain_run_speaks_of_no_comparison():
    assert not {"arms", "arm", "comparison", "published"} & record.to_json(resolve(specs("amp=o2")[0], LAPTOP)).keys()


def test_arms_in_several_images_that_a_job_would_have_to_fetch_are_refused():
    plans = [resolve(comparison.settled(spec, Compare()), LAPTOP) for spec in specs("amp=o0,o2")]
    fetched = [
        dataclasses.replace(plan, container=dataclasses.replace(CONTAINED, asked=image, pull=image))
        for plan, image in zip(plans, ("a:1", "b:2"), strict=True)
    ]
    with pytest.raises(UsageError, match=r"these arms have several: first `python -m launcher image pull a:1`"):
        comparison.make(fetched, Compare())
    comparison.make([fetched[0], fetched[0]], Compare())
    bare, contained = plans[0], dataclasses.replace(plans[1], container=CONTAINED)
    comparison.make([bare, contained], Compare())


def test_an_arm_without_a_container_leaves_the_image_to_the_others():
    bare, contained = specs("container=none,docker", "image=x", "mounts=[/a:/b]", "container.ipc=private")
    assert (bare.launch.image, bare.launch.mounts, bare.launch.container.ipc) == (None, (), "host")
    assert (contained.launch.image, contained.launch.container.ipc) == ("x", "private")


def test_an_arm_without_a_profiler_leaves_its_keys_to_the_others():
    plain, profiled = specs("profile=none,framework", "profile.steps=3")
    assert (plain.training.profile.steps, profiled.training.profile.steps) == (5, 3)


def test_arms_may_run_in_several_pythons_each_looked_into(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nprintf '3.10.2\\ntorch 2.4.0\\n'\n")
    other.chmod(0o700)
    both = specs(f"python=choice({other},{sys.executable})", f"run_root={tmp_path / 'runs'}")
    first, second = probe_each(both)
    assert (first.python, first.python_version, first.packages) == (str(other), "3.10.2", {"torch": "2.4.0"})
    assert (second.python, first.code) == (sys.executable, second.code)


@pytest.mark.parametrize("kind", ["docker", "apptainer", "pyxis"])
def test_its_result_is_written_in_the_controls_container_once_and_without_devices(kind):
    made = planned("amp=o0,o2").bind("20260102-030405-brave-otter")
    runtime = Runtime(kind=kind, version=(1, 4, 5), command=("srun", "--nodes=2") if kind == "pyxis" else (kind,))
    contained = dataclasses.replace(CONTAINED, runtime=runtime, devices=("0",))
    arms = tuple(dataclasses.replace(arm, container=contained, python="python3") for arm in made.arms)
    text = render.render(dataclasses.replace(made, arms=arms, container=contained, python="python3"))
    conclude = text[text.index("conclude() {") : text.index("\n}", text.index("conclude() {"))]
    assert "x.sif" in conclude
    assert "-m \\\n    launcher.compare.write_result" in conclude
    assert f"{made.run_dir}/launcher.zip" in conclude
    assert "--gpus" not in conclude and "--nv" not in conclude and "--nodes=2" not in conclude


def test_gpus_are_taken_once_for_all_arms():
    made = planned("amp=o0,o2", "gpus=1", facts=TWO_A100)
    assert "take_gpus" in render.render(made)
    assert all("take_gpus" not in render.render(arm) for arm in made.arms)


def test_golden_script_of_a_comparison():
    made = planned("amp=o0,o2", "batch=64", how=Compare(rounds=3, steps=20)).bind("20260102-030405-calm-fox")
    text = render.render(made)
    golden.check_difference(GOLDEN / "comparison.sh.diff", text, script_of("cpu-o2"))
    golden.shellcheck({"comparison": text})


def test_resumed_only_its_place_in_the_queue_may_change():
    made = planned("amp=o0,o2").bind("20260102-030405-brave-otter")
    with pytest.raises(UsageError, match="epochs=3: the arms of a comparison stay as they are"):
        changes(made, {"epochs": "3"})
    assert changes(made, {}) == made
