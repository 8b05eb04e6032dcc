"""The folder in which a user's script starts, and the inputs that are linked there."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from amp_launcher.around import script_execution
from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.record import to_json
from launcher.plan.resolve import resolve
from launcher.plan.user_script import start_folder
from launcher.probe.facts import Facts
from launcher.script.render import render
from launcher.script.trainer_command import lines
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP
from tests.launcher.plan.test_user_script import BARE, plan_of, specs_of, with_script, wrapped


@pytest.mark.parametrize(("word", "folder"), [("workdir=run", "work"), ("workdir=out", "/home/mei/project/out")])
def test_it_starts_in_the_folder_that_workdir_names(word: str, folder: str, code: Path) -> None:
    assert wrapped(plan_of(word), code).workdir == code / folder


SSH = ("cluster=ssh", "cluster.host=box")
SWEEP = ("amp=o0,o1",)


def first_of(*words: str, facts: Facts = LAPTOP) -> Plan:
    """The plan of the first run of a request."""
    return resolve(specs_of("recipe=script", "script=train.py", *words)[0], with_script(facts))


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ((), "/home/mei/project"),
        (SSH, ""),
        (SWEEP, ""),
        ((*SSH, *SWEEP), ""),
        ((*SWEEP, "workdir=."), "/home/mei/project"),
        ((*SSH, "workdir=/data/mei"), "/data/mei"),
    ],
)
def test_one_run_here_starts_where_it_was_typed_and_others_in_folders_of_their_own(
    words: tuple[str, ...], folder: str
) -> None:
    plan = first_of(*words)
    assert plan.script and plan.script.workdir == folder
    notes = " ".join(plan.advice)
    assert ("starts in an empty folder of its own" in notes) == (not folder)
    assert ("all runs of this sweep start in /home/mei/project" in notes) is ("workdir=." in words)


def test_each_cell_with_a_folder_by_name_is_no_shared_folder() -> None:
    assert "all runs of this sweep" not in " ".join(first_of("workdir=a,b").advice)


def test_inputs_are_linked_in_a_folder_of_the_runs_own_and_shown_in_the_plan() -> None:
    plan = first_of(*SWEEP, "script.inputs=[data,/sets/images/,~/table.csv]")
    paths = {"data": "/home/mei/project/data", "images": "/sets/images", "table.csv": "/home/mei/table.csv"}
    assert plan.script and plan.script.inputs == paths
    links = "data -> /home/mei/project/data, images -> /sets/images, table.csv -> /home/mei/table.csv"
    assert start_folder(plan) == f"/home/mei/launcher-runs/RUN_ID/work, with {links}"
    assert to_json(plan)["script"]["inputs"] == paths
    assert "empty folder" not in " ".join(plan.advice)


def test_an_input_above_the_folder_is_found_above_the_runs_own_too(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a wrapped script, each block of a comparison, and a bare one."""
    here = tmp_path / "examples" / "it's"
    (here / "data").mkdir(parents=True)
    for folder in ("data", "shared/sets"):
        (tmp_path / "examples" / folder).mkdir(parents=True)
    inputs = ["../shared/sets", "../data", "data", "../../examples/data"]
    plan = first_of(
        *SWEEP, f"script.inputs=[{','.join(inputs)}]", facts=dataclasses.replace(LAPTOP, cwd=here.as_posix())
    )
    plan = dataclasses.replace(plan, run_root=str(tmp_path / "runs"))
    assert plan.script
    assert start_folder(plan).startswith(f"{tmp_path}/runs/RUN_ID/work/examples/it's, with ../../examples/data -> ")
    assert "arms/00/work/N/examples/it's for its block N, with ../" in start_folder(dataclasses.replace(plan, arm="00"))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "2")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [""])
    for job, work in ((plan, "work"), (dataclasses.replace(plan, arm="00"), "work/2")):
        started = wrapped(job, code)
        script_execution.execute(started.file, (), started.workdir, started.inputs)
        assert Path.cwd() == code / work / "examples" / "it's"
        assert {name: Path(name).resolve() for name in inputs} == {name: (here / name).resolve() for name in inputs}
        monkeypatch.chdir(code)
    bare = dataclasses.replace(plan, script=dataclasses.replace(plan.script, bare=True))
    for _ in range(2):
        text = "\n".join([*lines(bare)[:-1], "readlink -f data ../data ../shared/sets ../../examples/data"])
        ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
        found = [str((here / name).resolve()) for name in ("data", "../data", "../shared/sets", "../../examples/data")]
        assert ended.stdout.splitlines() == found, ended.stderr


def test_inputs_that_are_where_the_script_starts_need_no_link() -> None:
    plan = plan_of("script.inputs=[data]")
    assert plan.script and (plan.script.workdir, plan.script.inputs) == ("/home/mei/project", {})
    assert start_folder(plan) == "/home/mei/project"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("script.inputs=[/sets/images]",),
            r"=\[/sets/images\]: the script starts in /home/mei/project, where nothing",
        ),
        ((*SWEEP, "script.inputs=[a/x,b/x]"), "a/x and /home/mei/project/b/x would have links of the same name, x"),
        ((*SWEEP, "script.inputs=[gone]"), r"no such file or folder on box \(/home/mei/project/gone\)"),
        ((*SWEEP, "script.inputs=[../../../../x]"), "it leads above /home/mei/project more often than that has"),
        ((*SWEEP, "script.inputs=[/]"), "it has no name for a link"),
        ((*SWEEP, 'script.inputs=[""]'), "it has no name for a link"),
        (("workdir=out",), "workdir=out: there is no such folder"),
    ],
)
def test_inputs_and_folders_that_are_not_there_are_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says + r".*\(command line\)"):
        first_of(*words, facts=dataclasses.replace(LAPTOP, missing=("gone", "out")))


def test_a_later_attempt_starts_in_the_same_folder_and_each_block_of_an_arm_in_a_new_one(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "data").mkdir()
    plan = first_of(*SWEEP, f"script.inputs=[{code}/data]")
    arm = dataclasses.replace(plan, arm="00")
    assert start_folder(arm).startswith("/home/mei/launcher-runs/RUN_ID/arms/00/work/N for its block N, with data -> ")
    folders = {}
    for job in (plan, arm):
        for attempt in ("1", "2"):
            monkeypatch.setenv("LAUNCHER_ATTEMPT", attempt)
            started = wrapped(job, code)
            folders[job.arm, attempt] = started.workdir.relative_to(code).as_posix()
            monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
            monkeypatch.setattr("sys.argv", [])
            monkeypatch.setattr("sys.path", [""])
            script_execution.execute(started.file, (), started.workdir, started.inputs)
            assert Path("data").readlink() == code / "data"
            monkeypatch.chdir(code)
    assert folders == {("", "1"): "work", ("", "2"): "work", ("00", "1"): "work/1", ("00", "2"): "work/2"}


def test_a_bare_script_finds_its_inputs_too(tmp_path: Path) -> None:
    """By lines of run.sh, which have to bear a second attempt."""
    (tmp_path / "it's").mkdir()
    plan = dataclasses.replace(
        first_of(*BARE, "workdir=run", f"script.inputs=[{tmp_path}/it's]"), run_root=str(tmp_path)
    )
    start = lines(plan)[:-1]
    for _ in range(2):
        ended = subprocess.run(["bash", "-c", "\n".join([*start, "pwd; readlink *"])], capture_output=True, text=True)
        assert ended.stdout.splitlines() == [f"{tmp_path}/RUN_ID/work", f"{tmp_path}/it's"], ended.stderr


def test_in_a_container_the_working_folder_is_mounted_and_a_script_of_the_image_is_not_looked_for() -> None:
    facts = with_containers(LAPTOP, image="it:1")
    image = ("container=docker", "image=it:1")
    mounted = "--mount=type=bind,source={0},target={0}"
    assert mounted.format("/home/mei/project") in render(plan_of(*image, facts=facts))
    own = ("workdir=run", *image, "script.inputs=[/sets/a,/sets/b]")
    linked = render(plan_of(*own, "mounts=[/sets/b:/sets/b]", facts=facts))
    assert mounted.format("/sets/a") + ",readonly" in linked
    assert linked.count("target=/sets/b") == 1, "a mount of the user's own stays as it was asked for"
    moved = dataclasses.replace(facts, real_paths={"/sets/a": "/disk/a"})
    behind = plan_of(*own, facts=moved)
    assert behind.script and behind.script.inputs == {"a": "/disk/a", "b": "/sets/b"}
    assert mounted.format("/disk/a") + ",readonly" in render(behind)
    without = plan_of("workdir=run", "script.inputs=[/sets/a]", facts=moved)
    assert without.script and without.script.inputs == {"a": "/sets/a"}
    (spec,) = specs_of("recipe=script", "script=image:/opt/it/train.py", *image)
    inside = resolve(spec, facts)
    assert inside.script and (inside.script.file, inside.script.workdir) == ("/opt/it/train.py", "/opt/it")
    assert "/opt/it/train.py is looked for in the image alone, when the job starts" in inside.advice
    assert "target=/opt/it" not in render(inside)
