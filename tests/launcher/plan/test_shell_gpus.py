"""The GPUs that a shell leaves to a run: CUDA's rules, Slurm's allocation, and contradictions."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.__main__ import main
from launcher.errors import UsageError
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from tests.launcher.fake_gpus import FakeGpus
from tests.launcher.hosts import LAPTOP, gpu, spec_of
from tests.launcher.slurm.test_text import LOGIN

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
FOUR = dataclasses.replace(
    LAPTOP, gpus=tuple(dataclasses.replace(gpu(index, "8.0", "A100"), uuid=uuid) for index, uuid in enumerate(UUIDS))
)


def in_shell(facts: Facts = FOUR, **variables: str) -> Facts:
    return dataclasses.replace(facts, gpu_variables=variables)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("3", "3"),
        ("3,1", "3,1"),
        ("0,1,2,3", "0,1,2,3"),
        ("1,9,2", "1"),
        ("1,-1,2", "1"),
        ("1,,2", "1"),
        ("2x, 1", "2,1"),
        ("1,GPU-aa11", "1"),
        ("GPU-bb33,GPU-aa1", "2,0"),
        ("GPU-bb33,GPU-aa", "2"),
        ("GPU-bb33,1", "2"),
    ],
)
def test_a_run_takes_what_cuda_would_show_the_shell(value: str, left: str) -> None:
    plan = resolve(spec_of(), in_shell(CUDA_VISIBLE_DEVICES=value))
    assert plan.env["CUDA_VISIBLE_DEVICES"] == left
    said = [sentence for sentence in plan.advice if f"CUDA_VISIBLE_DEVICES={value} of this shell" in sentence]
    assert len(said) == (left != "0,1,2,3")


@pytest.mark.parametrize("value", ["", "-1", "9", "none", "NoDevFiles", "1,1", "GPU-aa", "GPU-aa11,GPU-aa11"])
def test_a_shell_that_leaves_no_gpu_leaves_a_run_none(value: str) -> None:
    facts = in_shell(CUDA_VISIBLE_DEVICES=value)
    plan = resolve(spec_of(), facts)
    assert (plan.env["CUDA_VISIBLE_DEVICES"], plan.settings["device"]) == ("", "cpu")
    says = f"CUDA_VISIBLE_DEVICES={value} of this shell leaves no GPU of the 4 of box"
    assert f"running without a GPU: {says}" in plan.advice
    with pytest.raises(UsageError, match=f"gpus=1: box has {says}"):
        resolve(spec_of("gpus=1"), facts)


def test_a_number_of_gpus_is_chosen_among_those_that_the_shell_leaves() -> None:
    facts = in_shell(CUDA_VISIBLE_DEVICES="3,2")
    assert resolve(spec_of("gpus=1"), facts).gpu_pool == ("GPU-cc44", "GPU-bb33")
    assert resolve(spec_of("visible_gpus=[2]"), facts).env["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(UsageError, match="gpus=3: box has GPU 3 A100, GPU 2 A100"):
        resolve(spec_of("gpus=3"), facts)


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (
            "visible_gpus=[0,3]",
            {"CUDA_VISIBLE_DEVICES": "3"},
            r"visible_gpus=\[0, ?3\] contradicts CUDA_VISIBLE_DEVICES=3 of this shell, which leaves GPU 3; name some "
            r"of these, or unset CUDA_VISIBLE_DEVICES \(command line\)",
        ),
        ("visible_gpus=[9]", {"CUDA_VISIBLE_DEVICES": "3"}, "there is no GPU 9 on box"),
        ("", {"CUDA_VISIBLE_DEVICES": "MIG-1c2d"}, "names an instance of a GPU, and a run takes whole GPUs"),
        ("visible_gpus=[1]", {"SLURM_JOB_GPUS": "2,3"}, "contradicts SLURM_JOB_GPUS=2,3 of this shell"),
    ],
)
def test_what_contradicts_the_shell_is_refused(words: str, variables: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve(spec_of(*words.split()), in_shell(**variables))


def test_numbers_are_not_guessed_where_cuda_counts_in_another_order() -> None:
    mixed = dataclasses.replace(LAPTOP, gpus=(gpu(0, "7.0"), gpu(1, "8.0", "A100")))
    with pytest.raises(
        UsageError, match="counts the fastest GPU as 0, and those of box differ; export CUDA_DEVICE_ORD"
    ):
        resolve(spec_of(), in_shell(mixed, CUDA_VISIBLE_DEVICES="0"))
    ordered = in_shell(mixed, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert resolve(spec_of(), ordered).env["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({"SLURM_JOB_GPUS": "2,3"}, "2,3"),
        ({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "2,3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "2,3"}, "1"),
        ({"SLURM_JOB_GPUS": "4,5,6,7"}, "0,1,2,3"),  # confined: the driver lists the job's alone, from 0 on
        ({"SLURM_JOB_GPUS": ""}, "0,1,2,3"),
    ],
)
def test_an_allocation_that_does_not_confine_devices_is_kept_to(variables: dict[str, str], left: str) -> None:
    assert resolve(spec_of(), in_shell(**variables)).env["CUDA_VISIBLE_DEVICES"] == left


@pytest.mark.parametrize("word", ["device=cpu", "gpus=0"])
def test_a_run_without_gpus_reads_no_list(word: str) -> None:
    assert resolve(spec_of(word), in_shell(CUDA_VISIBLE_DEVICES="MIG-1c2d")).env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_job_of_slurm_has_nothing_to_do_with_the_shells_gpus() -> None:
    facts = in_shell(dataclasses.replace(LOGIN, gpus=FOUR.gpus), CUDA_VISIBLE_DEVICES="7")
    assert not any("CUDA_VISIBLE" in sentence for sentence in resolve(spec_of("cluster=slurm"), facts).advice)


def test_the_variables_of_this_shell_are_read(
    cards: FakeGpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cards.uuids[2][:12])
    assert main(["plan", "visible_gpus=[0]"]) == 2
    assert f"contradicts CUDA_VISIBLE_DEVICES={cards.uuids[2][:12]} of this shell" in capsys.readouterr().err
