"""`python=uv` and `python=venv:PATH` as a person types them: here, on Slurm and over SSH, made before the run."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.runs import selection, store
from tests.launcher import uv_projects
from tests.launcher.run_folders import end_all
from tests.launcher.slurm.bench import cluster_of, ended
from tests.launcher.ssh.far import Done

JOB = ("amp=none", "telemetry.every=0")


@pytest.fixture
def project(tmp_path):
    return uv_projects.make(tmp_path, tmp_path / "proj")


@pytest.fixture
def type_(root, project, capfd, monkeypatch):
    """`python -m launcher WORDS` in the project's folder."""
    monkeypatch.chdir(project)

    def type_(*words: str) -> Done:
        capfd.readouterr()
        code = main([*words, f"run_root={root}"])
        return Done(code, *capfd.readouterr())

    return type_


def environments(root: Path) -> list[Path]:
    return [path for path in (root / ".environments").glob("*") if path.is_dir()]


def test_an_environment_is_made_once_and_serves_the_runs_of_its_lock(type_, root, tmp_path):
    planned = type_("plan", "train.py", "python=uv", *JOB)
    assert planned.code == 0, planned.err
    assert "uv.lock isn't made yet: `run` makes it" in planned.out
    assert not (root / ".environments").exists()
    done = type_("train.py", "python=uv", *JOB)
    assert done.code == 0, done.err
    (made,) = environments(root)
    assert f"answer 42 {made}/bin/python" in done.out
    assert f"making the environment of {tmp_path}/proj/uv.lock in {made}" in done.err
    again = type_("train.py", "python=uv", *JOB)
    assert f"answer 42 {made}/bin/python" in again.out
    assert "making" not in again.err
    assert uv_projects.builds(tmp_path) == 1


def test_resume_makes_an_environment_that_is_gone_as_it_was(type_, root, project):
    assert type_("train.py", "python=uv", *JOB).code == 0
    (run,) = selection.run_names(str(root))
    (made,) = environments(root)
    shutil.rmtree(made)
    (project / "lib" / "tinylib.py").write_text("answer = 43\n")
    (project / "uv.lock").unlink()
    done = type_("resume", run, "script.resume_arguments=[]")
    assert done.code == 0, done.err
    assert environments(root) == [made]
    assert f"answer 42 {made}/bin/python" in done.out


def test_what_is_refused_leaves_no_run(type_, root, project):
    (project / "pyproject.toml").write_text((project / "pyproject.toml").read_text().replace(">=3.10", ">=3.11"))
    refused = type_("train.py", "python=uv", *JOB)
    assert refused.code == 2
    assert f"error: python=uv: {project}/uv.lock is out of date with its pyproject.toml" in refused.err
    assert selection.run_names(str(root)) == []
    assert environments(root) == []


def test_a_framework_that_the_lock_lacks_is_refused_before_anything_is_made(type_, root, project, tmp_path):
    refused = type_("recipe=mnist", "amp=o1", "python=uv")
    assert refused.code == 2
    assert f"framework=torch is not in {project}/uv.lock; this adds it:" in refused.err
    assert f"  cd {project} && uv add torch" in refused.err
    assert uv_projects.builds(tmp_path) == 0
    assert environments(root) == []


def test_jobs_of_several_projects_are_not_started_together(type_, tmp_path):
    uv_projects.make(tmp_path, tmp_path / "other")
    refused = type_("script=choice(train.py,../other/train.py)", "recipe=script", "python=uv", *JOB)
    assert refused.code == 2
    assert "these jobs have several projects" in refused.err


@pytest.mark.parametrize(
    ("python", "says"),
    [("uv", "python=PATH names one that the image has"), ("venv:env", "name it as python=PATH/bin/python")],
)
def test_a_container_has_the_python_of_its_image(type_, python, says):
    refused = type_("plan", "train.py", f"python={python}", "container=docker", "image=python:3.12", *JOB)
    assert refused.code == 2
    assert f"python={python} with container=docker: a container runs the Python of its image" in refused.err
    assert says in refused.err


def test_a_program_that_is_not_python_has_no_environment(type_, capfd, root):
    assert main(["cmd", "python=uv", f"run_root={root}", "--", "/bin/true"]) == 2
    assert "python=uv: a program that is not Python finds nothing of it" in capfd.readouterr().err
    assert selection.run_names(str(root)) == []


def test_venv_names_an_environment_by_its_folder(type_, root, project):
    venv.create(project / ".venv", symlinks=True)
    done = type_("train.py", "python=venv:.venv", "script.inputs=[]", "amp=none", "telemetry.every=0")
    assert "No module named 'tinylib'" in done.out + done.err
    (run,) = selection.run_names(str(root))
    assert store.read_json(root / run / "plan.json")["python"] == f"{project}/.venv/bin/python"
    lacks = type_("plan", "recipe=mnist", "amp=o1", f"python=venv:{project}/.venv")
    assert lacks.code == 2
    assert "  python3 -m venv ~/torch && ~/torch/bin/pip install torch" in lacks.err


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("venv:", "names no folder; say python=venv:PATH"),
        ("venv:/nowhere", "there is no /nowhere; `python3 -m venv /nowhere` makes an environment"),
        ("venv:lib", "/proj/lib is no environment, as it lacks pyvenv.cfg or bin/python"),
    ],
)
def test_what_is_no_environment_is_refused(type_, named, says):
    refused = type_("train.py", f"python={named}", *JOB)
    assert refused.code == 2
    assert says in refused.err


@pytest.mark.testbed
def test_on_slurm_it_is_made_before_the_job_is_queued(testbed, type_, root, tmp_path):
    with cluster_of(testbed, tmp_path):
        done = type_("train.py", "python=uv", "cluster=slurm", "gpus=0", *JOB)
        assert done.code == 0, done.err
        (made,) = environments(root)
        (run,) = selection.run_names(str(root))
        try:
            ended(root / run)
        finally:
            end_all(root)
        assert f"answer 42 {made}/bin/python" in (root / run / "attempts" / "1" / "stdout.log").read_text()


def test_over_ssh_it_is_made_there_of_the_files_that_are_sent(far, project, monkeypatch):
    (uv, *words) = uv_projects.command()
    if words:
        pytest.skip("needs uv as a program, which can be copied there")
    shutil.copy(uv, far.there / "uv")
    python = far.program("agent", f'#!/bin/sh\nPATH={far.there}:$PATH exec {far.testbed.python} "$@"\n')
    settings = project / "pyproject.toml"
    cache, stray = far.there / "cache", project.parent / "cache"
    settings.write_text(settings.read_text().replace(str(stray), str(cache)))
    backend = project / "lib" / "backend.py"
    backend.write_text(backend.read_text().replace(str(project.parent), str(far.there)))
    where = [word for word in far.words if not word.startswith("python=")]
    monkeypatch.chdir(project)
    submitted = far.ok("train.py", *where, f"cluster.python={python}", "python=uv", *JOB, "wait=true")
    (made,) = environments(far.root)
    (run,) = far.runs()
    assert f"making the environment of {project}/uv.lock in {made}" in submitted.err
    assert f"answer 42 {made}/bin/python" in (far.folder(run) / "attempts" / "1" / "stdout.log").read_text()
    assert made.stat().st_uid == far.testbed.user.uid
    shutil.rmtree(made)
    far.ok("resume", run, "script.resume_arguments=[]")
    assert far.until(run, "done") == "done"
    assert far.attempts(run) == [1, 2]
    (project / "uv.lock").write_text("version = 1\n[[[\n")
    refused = far.type("train.py", *where, f"cluster.python={python}", "python=uv", *JOB)
    assert refused.code == 2, refused.err
    assert "Failed to parse `uv.lock`" in refused.err
    assert far.runs() == [run]
