"""Profilers around the trainer: the command word for word, and where they are refused before queueing."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.errors import UsageError
from launcher.plan import profilers
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.script.render import render
from launcher.script.trainer_command import command
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of
from tests.launcher.slurm.test_text import LOGIN

GPU = dataclasses.replace(TWO_A100, profilers=("nsys", "ncu"))
RUN = "/home/mei/launcher-runs/RUN_ID"


def plan_of(*words: str, facts: Facts = GPU) -> Plan:
    return resolve(spec_of(*words), facts)


COMMANDS = {
    "nsys": "nsys profile --trace=cuda,cudnn,cublas,nvtx,osrt --force-overwrite=true --capture-range=cudaProfilerApi "
    f"--capture-range-end=stop --output={RUN}/profile/nsys",
    "ncu": f"ncu --target-processes=all --force-overwrite --profile-from-start=off --export={RUN}/profile/ncu",
    "framework": "",
    "none": "",
}


@pytest.mark.parametrize("tool", COMMANDS)
def test_the_profiler_stands_in_front_of_the_whole_command(tool: str) -> None:
    words = COMMANDS[tool].split()
    alone = plan_of("amp=o1", "gpus=1", "visible_gpus=[0]", f"profile={tool}")
    assert command(alone) == (*words, "/opt/venv/bin/python", "-m", alone.trainer, f"run={alone.run_dir}")
    both = command(plan_of("amp=o1", "batch=256", f"profile={tool}"))
    started = ("/opt/venv/bin/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    assert both[: len(words) + 6] == (*words, *started)


def test_the_settings_say_which_steps_are_recorded_and_the_folder_of_the_trace_is_made_first() -> None:
    plan = plan_of("amp=o1", "gpus=1", "profile=nsys", "profile.start=20", "profile.steps=3")
    assert plan.settings["profile"] == {"tool": "nsys", "start": 20, "steps": 3, "key_node": None, "reports": []}
    made, _, started = render(plan).partition("nsys profile --trace")
    assert started and 'mkdir -p "$LAUNCHER_RUN/profile" || exit 1\n' in made
    assert "RUN/profile" not in render(plan_of("amp=o1", "gpus=1"))


@pytest.mark.parametrize(
    ("words", "facts", "says"),
    [
        (("profile=nsys",), LAPTOP, "records GPUs, and this job runs on a CPU; say profile=framework"),
        (("profile=nsys",), TWO_A100, "there is no nsys on the PATH of box"),
        (("profile=dlprof",), GPU, "profile=dlprof needs one of NVIDIA's images from 19.09 to 21.12"),
        (
            ("recipe=simplenet", "framework=paddle", "amp=o0", "profile=framework"),
            LAPTOP,
            "profile=framework supports torch and TensorFlow, not Paddle",
        ),
        (("profile=framework", "steps=10"), LAPTOP, "profile.start=10 and steps=10: the last step proves"),
    ],
)
def test_what_could_record_nothing_is_refused(words: tuple[str, ...], facts: Facts, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_of("batch=256", *words, facts=dataclasses.replace(facts, packages={**facts.packages, "paddle": "3.3.1"}))
    assert says in str(refusal.value)


def test_a_profiler_in_a_container_stands_inside_of_it() -> None:
    facts = with_containers(TWO_A100, image="nvcr.io/nvidia/pytorch:25.06-py3")
    words = ("container=docker", "image=nvcr.io/nvidia/pytorch:25.06-py3", "gpus=1", "profile=nsys")
    lines = [line.strip(" \\") for line in render(plan_of(*words, facts=facts)).splitlines()]
    assert lines.index("nvcr.io/nvidia/pytorch:25.06-py3") + 1 == lines.index("nsys")


DLPROF = (
    *("recipe=script", "script=image:/x/train.py", "train.bare=true", "train.precision=script", "amp=o0"),
    *("require_proof=false", "framework=tensorflow", "container=apptainer", "image=ngc-tensorflow:21.04"),
    *("cluster=slurm", "profile=dlprof", "gpus=1"),
)


def dlprof(*words: str) -> Plan:
    return resolve(spec_of(*DLPROF, *words), with_containers(LOGIN, image="/images/tf.sif"))


def test_dlprof_writes_the_reports_that_are_asked_for_in_its_own_format_which_is_csv() -> None:
    words = command(dlprof("profile.reports=[summary,detail]", "profile.key_node=ADD_1"))
    assert words[:5] == ("dlprof", "--key_node=ADD_1", "--iter_start=10", "--reports=summary,detail", "python3")
    assert "--reports" not in " ".join(map(str, command(dlprof())))


def test_a_resumed_plan_of_before_dlprofs_reports_were_a_key_needs_none() -> None:
    settings = dict(dlprof().settings)
    settings["profile"] = {name: value for name, value in settings["profile"].items() if name != "reports"}
    assert profilers.prefix(settings, RUN, bare=True) == ("dlprof", "--iter_start=10")


def test_dlprof_without_a_key_node_is_told_how_to_find_one() -> None:
    (told,) = (line for line in dlprof().advice if "key_node" in line)
    assert "say profile.reports=[detail] once and choose an operation with as many calls as steps" in told
    assert "key_node" not in str(dlprof("profile.key_node=ADD_1").advice)


def test_dlprof_is_not_warned_of_a_time_limit_and_nsys_is() -> None:
    text = render(dlprof())
    assert 'stop_before_end ""' in text
    assert "stop_before_end yes" in render(resolve(spec_of("cluster=slurm", "profile=nsys", "gpus=1"), LOGIN))
