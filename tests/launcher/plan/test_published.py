"""Published command lines, as experiments: what is planned is what the pages say, word for word."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from launcher.commands import plan as plan_verb
from launcher.errors import UsageError
from launcher.plan import user_script
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.script import render
from launcher.script.trainer_command import command
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, gpu, spec_of

TWCC_IMAGE = "nvcr.io/nvidia/tensorflow:19.08-py3"
MIRRORED = "registry.example.org:5000/mirror/tensorflow:2019-august"

# Copied from the pages, with their line breaks.
PUBLISHED = {
    "twcc_published_group1": """
        python ./main.py --mode=training_benchmark --warmup_steps 200 \\
       --num_iter 500 --batch_size 128 --iter_unit batch --results_dir results \\
       --nouse_tf_amp  --nouse_xla
    """,
    "twcc_published_group2": """
        python ./main.py --mode=training_benchmark --warmup_steps 200 \\
       --num_iter 500 --batch_size 256 --iter_unit batch --results_dir results \\
       --nouse_tf_amp  --nouse_xla
    """,
    "twcc_published_group3": """
        python ./main.py --mode=training_benchmark --warmup_steps 200 \\
       --num_iter 500 --batch_size 256 --iter_unit batch --results_dir results \\
       --nouse_xla
    """,
    "twcc_published_group4": """
        python ./main.py --mode=training_benchmark --warmup_steps 200 \\
       --num_iter 500 --batch_size 256 --iter_unit batch --results_dir results
    """,
    "twcc_published_group5": """
        python ./main.py --mode=training_benchmark --warmup_steps 200 \\
       --num_iter 500 --batch_size 512 --iter_unit batch --results_dir results
    """,
    "alcf_published_dlprof": """
        dlprof --key_node=ASSIGNADDVARIABLEOP_1 --iter_start=15 python train_GAN_optimized.py
    """,
}
EXPORTED = dict(zip(sorted(name for name in PUBLISHED if "twcc" in name), "00111", strict=True))
"""What TF_ENABLE_AUTO_MIXED_PRECISION and its twin are set to."""
RATES = dict(zip(EXPORTED, (393.49, 405.73, 1308.37, 1309.21, 1361.00), strict=True))
"""Images per second in the page's table."""
TRAPS = {
    "twcc_published_group3": ("since June 2020",),
    "twcc_published_group4": ("since June 2020", "take this row as unproven"),
    "twcc_published_group5": ("since June 2020", "take it as unproven"),
    "alcf_published_dlprof": ("does not survive SIGINT", "--iter_stop", "fail to detect AMP"),
}


def host(image: str, capability: str = "7.0") -> Facts:
    card = dataclasses.replace(gpu(0, capability), driver="470.57.02")
    return dataclasses.replace(with_containers(LAPTOP, image=image), gpus=(card,), python="python")


def plan_of(name: str, *words: str, facts: Facts | None = None) -> Plan:
    usual = host(TWCC_IMAGE) if name.startswith("twcc") else host("/images/tf2_21.04.sif", "8.0")
    return resolve(spec_of(f"experiment={name}", *words), facts or usual)


def mirrored(name: str, *words: str) -> Plan:
    return plan_of(name, f"image={MIRRORED}", *words, facts=host(MIRRORED))


def exported(plan: Plan) -> set[str]:
    return {text for key, text in plan.env.items() if key.startswith("TF_ENABLE")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_command_is_planned_printed_and_run_inside_the_container_too(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = " ".join(PUBLISHED[name].replace("\\\n", " ").split())
    plan = plan_of(name)
    assert shlex.join(command(plan)) == typed
    assert plan_verb.main([f"experiment={name}"]) == 0
    assert f"\n  {typed}\n" in capsys.readouterr().out, "on any machine"
    lines = plan_verb.describe([plan], []).splitlines()
    assert f"  {typed}" in lines
    assert exported(plan) == set(EXPORTED.get(name, ""))
    assert plan.settings["train"]["published"] == RATES.get(name)
    assert ("LAUNCHER_RATE='Average total_ips:'" in render.render(plan)) == (name in RATES)
    folder, version, image = "/workspace/gan", "2.4.0", "ngc-tensorflow:21.04"
    if name in EXPORTED:
        folder, version, image = "/workspace/nvidia-examples/resnet50v1.5", "1.14.0", "ngc-tensorflow1:19.08"
        assert f"  export TF_ENABLE_AUTO_MIXED_PRECISION={EXPORTED[name]}" in lines
        assert f"in the image, {folder}:" in lines
    inside = dataclasses.replace(host(""), containers=None, packages={"tensorflow": version}, profilers=("dlprof",))
    plan = plan_of(name, "container=none", f"image.is={image}", facts=inside)
    assert (plan.container, shlex.join(command(plan)), exported(plan)) == (None, typed, set(EXPORTED.get(name, "")))
    assert f"cd {folder}" in render.render(plan)


def test_a_sequence_of_published_commands_is_printed_on_any_machine(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [name for name in PUBLISHED if name.startswith("twcc")]
    assert plan_verb.main([f"experiment={','.join(groups)}"]) == 0
    shown = capsys.readouterr().out
    typed = [line.strip() for line in shown.splitlines() if line.startswith("  python ")]
    assert typed == [" ".join(PUBLISHED[name].replace("\\\n", " ").split()) for name in groups]
    assert shown.count("note: `run` refuses them here: ") == 1


def test_plan_says_why_run_refuses_here_what_is_printed_all_the_same() -> None:
    spec = spec_of("experiment=twcc_published_group3")
    with pytest.raises(UsageError, match="gpus=1: box has no GPU") as refused:
        resolve(spec, LAPTOP)
    shown = plan_verb.describe_text([spec], [], refused.value)
    assert shlex.join(command(plan_of("twcc_published_group3"))) in shown
    assert "note: `run` refuses it here: gpus=1: box has no GPU\n" in shown
    assert "run.sh" not in shown


@pytest.mark.parametrize(
    "words",
    ["mounts=[/lus:/lus]", "visible_gpus=[0]", "run_root=/proc/none", "cluster=ssh cluster.host=nowhere.invalid"],
)
def test_it_is_printed_from_the_words_alone(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_verb.main(["experiment=alcf_published_dlprof", *words.split()]) == 0
    assert f"\n  {' '.join(PUBLISHED['alcf_published_dlprof'].split())}\n" in capsys.readouterr().out


def test_words_that_cannot_be_are_refused_and_not_printed() -> None:
    with pytest.raises(UsageError, match="gpus=1"):
        spec = spec_of("experiment=alcf_published_dlprof", "image=ngc-tensorflow:22.05")
        plan_verb.describe_text([spec], [], UsageError("gpus=1: box has no GPU"))


def test_only_a_command_in_an_image_is_printed_where_it_cannot_run() -> None:
    assert not user_script.is_text(spec_of("gpus=1"))
    assert not user_script.is_text(spec_of("experiment=twcc_published_group3", "train.bare=false", "train.rate="))


@pytest.mark.parametrize(("name", "traps"), TRAPS.items())
def test_the_traps_of_a_line_are_named_before_it_runs(name: str, traps: tuple[str, ...]) -> None:
    notes = " ".join(plan_of(name).advice)
    assert [trap for trap in traps if trap not in notes] == []


def test_the_image_is_the_published_one_and_the_file_is_in_it() -> None:
    plan = plan_of("twcc_published_group1")
    assert plan.container is not None
    assert plan.container.image == TWCC_IMAGE
    assert "./main.py is looked for in the image alone" in " ".join(plan.advice)


def test_a_gpu_that_this_machine_lacks_is_not_shown_as_found(capsys):
    plan_verb.main(["experiment=twcc_published_group1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("device ")]
    assert line.split() == ["device", "cuda", "gpus=1"]


@pytest.mark.parametrize("name", EXPORTED)
def test_an_image_by_a_mirrors_name_has_the_published_variables_only_with_image_is(name: str) -> None:
    plan = mirrored(name, "image.is=ngc-tensorflow1:19.08")
    assert plan.container is not None
    assert (plan.container.image, plan.mechanism, exported(plan)) == (MIRRORED, "ngc_environment", {EXPORTED[name]})
    unknown = r"name does not say whether it holds .*say .*image\.is=ngc-tensorflow1:19\.08"
    with pytest.raises(UsageError, match=unknown):  # the control would lose its two variables, and run AMP unseen
        mirrored(name)


def test_an_image_that_is_none_of_them_has_no_variables() -> None:
    plan = mirrored("twcc_published_group1", "image.is=other")
    assert (plan.mechanism, exported(plan)) == ("float32", set())


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("twcc_published_group3", "image=ngc-tensorflow:21.04", "nothing would apply amp=o1"),
        (
            "twcc_published_group1",
            "env.TF_ENABLE_AUTO_MIXED_PRECISION=1",
            r"env\.TF_ENABLE_AUTO_MIXED_PRECISION: amp=o0 and amp=o1 set it",
        ),
        (
            "alcf_published_dlprof",
            "image=ngc-tensorflow:22.05",
            "profile=dlprof needs one of NVIDIA's images from 19.09 to 21.12",
        ),
        (
            "twcc_published_group1",
            "image.is=ngc-tensorflow1:20.01",
            r"image\.is=ngc-tensorflow1:20\.01: the catalogue has 19\.03, ",
        ),
        (
            "twcc_published_group1",
            f"image={MIRRORED} image.is=ngc-tensorflow1:19.99",
            r"image\.is=ngc-tensorflow1:19\.99: the catalogue has",
        ),
        ("twcc_published_group1", f"image={MIRRORED} image.is=tf", r"image\.is=tf: no tf in the catalogue"),
        (
            "twcc_published_group1",
            f"image={MIRRORED} image.is=ngc-pytorch:21.04",
            rf"image={MIRRORED} \(ngc-pytorch:21\.04\): it holds torch",
        ),
        (
            "twcc_published_group1",
            "container=none",
            r"there is no container; say container=, or .*image\.is=ngc-tensorflow1:19\.08",
        ),
    ],
)
def test_an_image_or_a_variable_that_contradicts_the_published_line_is_refused(
    name: str, words: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(name, *words.split())


def test_alcfs_own_image_is_profiled_with_image_is() -> None:
    file = "/lus/theta-fs0/software/thetagpu/nvidia-containers/tensorflow2/tf2_21.04-py3.simg"
    words, facts = ("alcf_published_dlprof", f"image={file}"), host(file, "8.0")
    with pytest.raises(UsageError, match=r"profile=dlprof needs .*image\.is=ngc-tensorflow:21\.04"):
        plan_of(*words, facts=facts)
    plan = plan_of(*words, "image.is=ngc-tensorflow:21.04", facts=facts)
    assert shlex.join(command(plan)) == " ".join(PUBLISHED["alcf_published_dlprof"].split())
    assert plan.container is not None and plan.container.image == file
