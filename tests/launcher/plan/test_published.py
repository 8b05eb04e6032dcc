"""Published command lines, as experiments: what is planned is what the pages say, word for word."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from containers.runtime import Runtime
from launcher.commands import plan as plan_verb
from launcher.commands.plan import describe
from launcher.errors import UsageError
from launcher.plan import published_text
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import ContainerFacts, Facts
from launcher.script import render
from launcher.script.trainer_command import command
from tests.launcher.hosts import LAPTOP, gpu, spec_of

TWCC_IMAGE = "nvcr.io/nvidia/tensorflow:19.08-py3"
RUNTIMES = {
    "docker": Runtime(kind="docker", command=("docker",), version=(28, 0)),
    "apptainer": Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4)),
}

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
EXPORTED = {
    **dict.fromkeys(("twcc_published_group1", "twcc_published_group2"), "0"),
    **dict.fromkeys(("twcc_published_group3", "twcc_published_group4", "twcc_published_group5"), "1"),
}
TRAPS = {
    "twcc_published_group3": ("since June 2020",),
    "twcc_published_group4": ("since June 2020", "take this row as unproven"),
    "twcc_published_group5": ("since June 2020", "take it as unproven"),
    "alcf_published_dlprof": ("does not survive SIGINT", "--iter_stop", "fail to detect AMP"),
}


def host(image: str, capability: str = "7.0") -> Facts:
    found = ContainerFacts(
        runtimes=RUNTIMES,
        architecture="amd64",
        image=image,
        image_present=True,
        image_architecture="amd64",
        uid=1000,
        gid=1000,
    )
    card = dataclasses.replace(gpu(0, capability), driver="470.57.02")
    return dataclasses.replace(LAPTOP, gpus=(card,), containers=found, python="python")


def plan_of(name: str, *words: str) -> Plan:
    facts = host(TWCC_IMAGE) if name.startswith("twcc") else host("/images/tf2_21.04.sif", "8.0")
    return resolve(spec_of(f"experiment={name}", *words), facts)


@pytest.mark.parametrize("name", PUBLISHED)
def test_plan_prints_the_command_on_any_machine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_verb.main([f"experiment={name}"]) == 0
    assert f"\n  {shlex.join(command(plan_of(name)))}\n" in capsys.readouterr().out


def test_plan_says_why_run_refuses_here_what_is_printed_all_the_same() -> None:
    spec = spec_of("experiment=twcc_published_group3")
    with pytest.raises(UsageError, match="gpus=1: box has no GPU") as refused:
        resolve(spec, LAPTOP)
    plan = resolve(spec, published_text.equipped(spec, dataclasses.replace(LAPTOP, python="python")))
    assert list(command(plan)) == shlex.split(PUBLISHED["twcc_published_group3"].replace("\\\n", " "))
    shown = plan_verb.describe_text(plan, [], str(refused.value))
    assert "note: `run` refuses it here: gpus=1: box has no GPU\n" in shown
    assert "run.sh" not in shown


def test_only_a_command_in_an_image_is_told_of_where_it_cannot_run() -> None:
    assert not published_text.is_text(spec_of("gpus=1"))
    assert not published_text.is_text(spec_of("experiment=twcc_published_group3", "train.bare=false"))


@pytest.mark.parametrize(("name", "traps"), TRAPS.items())
def test_the_traps_of_a_line_are_told_before_it_runs(name: str, traps: tuple[str, ...]) -> None:
    told = " ".join(plan_of(name).advice)
    assert [trap for trap in traps if trap not in told] == []


def test_the_image_is_the_published_one_and_the_file_is_in_it() -> None:
    plan = plan_of("twcc_published_group1")
    assert plan.container is not None
    assert plan.container.image == TWCC_IMAGE
    assert "./main.py is looked for in the image alone" in " ".join(plan.advice)


def test_the_variables_are_not_set_for_a_tensorflow_that_passes_over_them() -> None:
    with pytest.raises(UsageError, match="nothing would apply amp=o1"):
        plan_of("twcc_published_group3", "image=ngc-tensorflow:21.04")


def test_the_variables_cannot_be_set_by_hand_against_the_level() -> None:
    with pytest.raises(UsageError, match=r"env\.TF_ENABLE_AUTO_MIXED_PRECISION: amp=o0 and amp=o1 set it"):
        plan_of("twcc_published_group1", "env.TF_ENABLE_AUTO_MIXED_PRECISION=1")


def test_dlprof_is_refused_in_an_image_that_has_none() -> None:
    with pytest.raises(UsageError, match="profile=dlprof needs one of NVIDIA's images of 2020 and 2021"):
        plan_of("alcf_published_dlprof", "image=ngc-tensorflow:22.05")


@pytest.mark.parametrize("name", PUBLISHED)
def test_plan_shows_it_as_the_page_does(name: str) -> None:
    plan = plan_of(name)
    lines = describe([plan], []).splitlines()
    line = " ".join(PUBLISHED[name].replace("\\\n", " ").split())
    assert f"  {line}" in lines
    if name in EXPORTED:
        assert f"  export TF_ENABLE_AUTO_MIXED_PRECISION={EXPORTED[name]}" in lines
        assert "in the image, /workspace/nvidia-examples/resnet50v1.5:" in lines


def test_a_gpu_that_this_machine_lacks_is_not_said_to_be_found_on_it(capsys):
    plan_verb.main(["experiment=twcc_published_group1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("device ")]
    assert line.split() == ["device", "cuda", "gpus=1"]


MIRRORED = "registry.example.org:5000/mirror/tensorflow:2019-august"


def resolved(*words: str, facts: Facts | None = None) -> Plan:
    return resolve(spec_of(*words), facts or host(MIRRORED))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("twcc")])
def test_an_image_by_a_mirrors_name_has_the_published_variables_once_it_is_said_what_it_is(name: str) -> None:
    plan = resolved(f"experiment={name}", f"image={MIRRORED}", "image.is=ngc-tensorflow1:19.08")
    assert plan.container is not None
    assert (plan.container.image, plan.mechanism) == (MIRRORED, "ngc_environment")
    assert {text for key, text in plan.env.items() if key.startswith("TF_ENABLE")} == {EXPORTED[name]}


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("twcc")])
def test_what_a_mirrors_name_means_is_not_guessed(name: str) -> None:
    """The control would lose its two variables, and run AMP unseen."""
    with pytest.raises(
        UsageError, match=r"name does not say whether it holds .*say .*image\.is=ngc-tensorflow1:19\.08"
    ):
        resolved(f"experiment={name}", f"image={MIRRORED}")


def test_an_image_that_is_none_of_them_has_no_variables() -> None:
    plan = resolved("experiment=twcc_published_group1", f"image={MIRRORED}", "image.is=other")
    assert (plan.mechanism, [key for key in plan.env if key.startswith("TF_ENABLE")]) == ("float32", [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["image.is=ngc-tensorflow1:20.01"],
            r"image\.is=ngc-tensorflow1:20\.01.* image=ngc-tensorflow1:19\.08 is|catalogue",
        ),
        (
            [f"image={MIRRORED}", "image.is=ngc-tensorflow1:19.99"],
            r"image\.is=ngc-tensorflow1:19\.99: the catalogue has",
        ),
        ([f"image={MIRRORED}", "image.is=tf"], r"image\.is=tf: no tf in the catalogue"),
        (
            [f"image={MIRRORED}", "image.is=ngc-pytorch:21.04"],
            rf"image={MIRRORED} \(ngc-pytorch:21\.04\): it holds torch",
        ),
    ],
)
def test_what_an_image_is_said_to_be_is_checked(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolved("experiment=twcc_published_group1", *words)


def test_alcfs_own_image_is_profiled_once_it_is_said_what_it_is() -> None:
    file = "/lus/theta-fs0/software/thetagpu/nvidia-containers/tensorflow2/tf2_21.04-py3.simg"
    words = ("experiment=alcf_published_dlprof", f"image={file}")
    with pytest.raises(UsageError, match=r"profile=dlprof needs .*image\.is=ngc-tensorflow:21\.04"):
        resolved(*words, facts=host(file, "8.0"))
    plan = resolved(*words, "image.is=ngc-tensorflow:21.04", facts=host(file, "8.0"))
    assert list(command(plan)) == shlex.split(PUBLISHED["alcf_published_dlprof"])
    assert plan.container is not None
    assert plan.container.image == file


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_command_runs_where_one_is_inside_the_container_already(name: str) -> None:
    version, image = (
        ("1.14.0", "ngc-tensorflow1:19.08") if name.startswith("twcc") else ("2.4.0", "ngc-tensorflow:21.04")
    )
    inside = dataclasses.replace(host(""), containers=None, packages={"tensorflow": version}, profilers=("dlprof",))
    words = (f"experiment={name}", "container=none", f"image.is={image}")
    plan = resolved(*words, facts=inside)
    assert plan.container is None
    assert list(command(plan)) == shlex.split(PUBLISHED[name].replace("\\\n", " "))
    exported = {text for key, text in plan.env.items() if key.startswith("TF_ENABLE")}
    assert exported == ({EXPORTED[name]} if name in EXPORTED else set())
    text = render.render(plan)
    assert f"cd {'/workspace/nvidia-examples/resnet50v1.5' if name in EXPORTED else '/workspace/gan'}" in text


def test_inside_of_which_container_one_is_has_to_be_said() -> None:
    with pytest.raises(
        UsageError, match=r"there is no container; say container=, or .*image\.is=ngc-tensorflow1:19\.08"
    ):
        resolved("experiment=twcc_published_group1", "container=none")
