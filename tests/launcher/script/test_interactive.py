"""The script of a terminal where it differs from a job's, as text; that it opens one is tested with the verb."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess

import pytest

from launcher.config import job_environment
from launcher.plan.resolve import resolve
from launcher.probe.facts import Script
from launcher.script import interactive
from tests.launcher.contained.test_text import CASES, PYXIS_IMAGE, with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of
from tests.launcher.slurm.test_text import LOGIN

RUN = "20260102-030405-calm-fox"


def plan_of(facts, *words):
    return resolve(spec_of(*words), facts)


def text_of(plan, attempt=None):
    return interactive.script(plan, token="ab12", attempt=attempt)


@pytest.mark.parametrize("name", CASES)
def test_every_script_passes_the_shells_own_check_of_its_grammar(name):
    facts, words = CASES[name]
    assert subprocess.run(["bash", "-n"], input=text_of(plan_of(facts, *words)), text=True).returncode == 0


def test_nothing_in_it_carries_the_name_of_a_run_which_would_end_it_with_the_run():
    facts, words = CASES["docker-gpu"]
    for plan in (plan_of(facts, *words), plan_of(facts, *words).bind(RUN)):
        text = text_of(plan)
        assert "LAUNCHER_RUN_ID" not in text
        assert f"--name={RUN}" not in text
        assert "--name=shell-ab12" in text and "exec bash --norc --noprofile -i" in text


def test_a_runs_own_shares_its_plan_and_while_it_runs_the_gpus_that_it_took():
    plan = plan_of(with_containers(TWO_A100), "container=apptainer", "image=/images/torch.sif", "gpus=1").bind(RUN)
    assert f"LAUNCHER_SPEC={plan.run_dir}/plan.json" in text_of(plan)
    assert "take_gpus_for_shell 1 'GPU-0000-0 GPU-0000-1' ''" in text_of(plan)
    assert "\ngpu_release\n" in text_of(plan)
    running = text_of(plan, attempt=2)
    assert "gpu_take" not in running and "gpu_release" not in running
    assert f"LAUNCHER_GPUS=$(<{plan.run_dir}/attempts/2/gpus)" in running
    both = plan_of(with_containers(TWO_A100), "container=apptainer", "image=/images/torch.sif", "gpus=2").bind(RUN)
    assert "LAUNCHER_GPUS=$(" not in text_of(both, attempt=2), "it took all, and plan.json has them"


def test_a_runs_own_has_its_variables_where_the_run_had_any():
    plan = plan_of(LAPTOP).bind(RUN)
    file = f"{plan.run_dir}/{job_environment.FILE}"
    assert file not in text_of(plan)
    for given in ({"passed": ("A",)}, {"inherited": ("A",)}):
        assert f". {file} || exit 1" in text_of(dataclasses.replace(plan, **given))


def test_pyxis_gets_its_terminal_from_the_step_that_srun_starts_with_the_jobs_resources():
    facts = with_containers(LOGIN, image=PYXIS_IMAGE)
    plan = plan_of(facts, "cluster=slurm", "container=pyxis", f"image={PYXIS_IMAGE}", "gpus=2", "cluster.time=5")
    argv = interactive.on_slurm(plan, text_of(plan), None)
    assert argv[:2] == ["bash", "-c"]
    assert "SLURM_JOB_GPUS" not in argv[2]
    (line,) = [line for line in argv[2].splitlines() if line.startswith("srun ")]
    words = shlex.split(line)
    assert {"--pty", "--gpus-per-node=2", "--time=5", f"--container-image={PYXIS_IMAGE}"} <= set(words)


def test_an_engine_under_slurm_gets_the_devices_of_the_step():
    facts, words = CASES["slurm-docker"]
    assert "SLURM_STEP_GPUS" in text_of(plan_of(facts, *words))


def test_what_the_far_login_shell_reads_is_one_word_of_the_script():
    words = interactive.over_ssh(["ssh", "-t", "--", "box"], ["bash", "-c", "echo 'a b' \"$HOME\"\nexit 0"])
    assert words[:4] == ["ssh", "-t", "--", "box"]
    done = subprocess.run(
        ["sh", "-c", words[4]], capture_output=True, text=True, env={"HOME": "/h", "PATH": "/bin:/usr/bin"}
    )
    assert done.stdout == "a b /h\n"


def test_on_a_laptop_it_is_plain():
    text = text_of(plan_of(LAPTOP, "env.A=x y"))
    assert "export A='x y'" in text
    assert "export PATH=/opt/venv/bin:" in text
    assert "docker" not in text and "gpu_release" not in text
    assert "the trainer by hand: python -m amp_launcher.recipes.mnist.train_torch" in text
    facts = dataclasses.replace(LAPTOP, scripts={"train.py": Script(path="/home/mei/train.py", name="script/train.py")})
    assert '\ncd "$LAUNCHER_CODE" ' in text_of(plan_of(facts, "recipe=script", "script=train.py", "amp=o0"))
