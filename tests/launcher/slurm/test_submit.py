"""What is submitted to Slurm, and what becomes of an answer: stand-ins for its programs note their arguments."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from launcher.code import code_store
from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.executors.local.start import record_submission
from launcher.executors.resume import resume_here
from launcher.executors.slurm import submit
from launcher.executors.slurm.jobs import job_of
from launcher.plan.model import Plan
from launcher.plan.record import to_json
from launcher.probe import slurm_probing
from launcher.runs import run_ids, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run
from tests.launcher import run_folders
from tests.launcher.compare.test_comparison import CONTAINED
from tests.launcher.run_folders import SWEEP
from tests.launcher.slurm.counted import Programs
from tests.launcher.slurm.test_text import CLUSTER, partition, plan_of


def cells(root: Path, *plans: Plan) -> tuple[list[Path], list[Plan]]:
    """Prepared cells of one sweep."""
    bound = [
        dataclasses.replace(plan, run_root=str(root)).bind(run_ids.cell_id(SWEEP, index, len(plans)))
        for index, plan in enumerate(plans)
    ]
    return [run_folders.make(root, plan.run_id) for plan in bound], bound


def submission(folder: Path) -> Submission:
    return store.read(Submission, folder / "submission.json")


def pulling(plan: Plan, image: Path) -> Plan:
    """The same with an image that a job fetches first."""
    return dataclasses.replace(
        plan, container=dataclasses.replace(CONTAINED, asked="a:1", image=str(image), pull="a:1")
    )


def test_where_slurm_does_not_answer_no_job_is_left_that_fetches_the_image(root: Path, programs: Programs) -> None:
    programs.does("scontrol", "echo no controller >&2; exit 1")
    folders, planned = cells(root, *[pulling(plan_of("gpus=0"), root / "a.sif")] * 2)
    with pytest.raises(Unavailable, match="no controller"):
        submit.start(folders, planned)
    assert not programs.calls()


@pytest.mark.parametrize("present", [False, True])
def test_a_run_comes_after_the_job_that_fetches_its_image_unless_it_has_come_meanwhile(
    root: Path, programs: Programs, present: bool
) -> None:
    image = root / "a.sif"
    image.write_text("an image") if present else None
    (folder,), planned = cells(root, pulling(plan_of("gpus=2", "nodes=2"), image))
    submit.start([folder], planned)
    last = f"{folder}/run.sh"
    if present:
        assert programs.calls() == [f"--parsable {last}"]
        return
    assert programs.calls() == [
        f"--parsable {folder}/pull.sh",
        f"--parsable --dependency=afterok:7 --kill-on-invalid-dep=yes {last}",
    ]
    text = (folder / "pull.sh").read_text()
    assert "--nodes=1" in text and "gpu" not in text.partition("# Fetches")[0]
    words = shlex.split(text.splitlines()[-1])
    assert words[0] == "exec" and words[2:] == [
        *("-m", "launcher", "image", "pull", "a:1", "container=apptainer", f"container.cache={root}")
    ]


def test_each_shape_of_resources_is_an_array_in_parts_no_larger_than_the_cluster_takes(
    root: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (plan_of("cluster.parallel=2", words) for words in ("gpus=1", "gpus=2"))
    monkeypatch.setattr(slurm_probing, "max_array_size", lambda: 2)
    folders, planned = cells(root, one, two, one, one)
    submit.start(folders, planned)
    assert capsys.readouterr().err == "note: the sweep is 3 job arrays; cluster.parallel=2 limits each\n"
    assert [job_of(submission(folder)) for folder in folders] == ["7_0", "9_0", "7_1", "8_0"]
    scripts = [Path(call.split()[-1]).read_text() for call in programs.calls()]
    assert [text.partition("--array=")[2].split()[0] for text in scripts] == ["0-1%2", "0-0%2", "0-0%2"]
    for folder in folders:
        recorded = submission(folder)
        assert recorded.script and recorded.log == recorded.script[:-2] + f"{recorded.array_index}.log"
        assert f"{folder}\n" in Path(recorded.script).with_suffix(".folders").read_text()


def test_one_array_that_is_as_large_as_the_cluster_takes_needs_no_note(
    root: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_probing, "max_array_size", lambda: 2)
    submit.start(*cells(root, *[plan_of("gpus=1", "cluster.parallel=2")] * 2))
    assert len(programs.calls()) == 1 and capsys.readouterr().err == ""


def test_a_resumed_run_has_an_answer_of_its_own(root: Path, programs: Programs) -> None:
    (folder,), planned = cells(root, plan_of("gpus=0"))
    for number in (1, 2):
        submit.start([folder], planned)
        recorded = submission(folder)
        assert (recorded.answer, job_of(recorded)) == (f"{folder}/sbatch.{number}.out", str(number + 6))


def test_a_resume_is_held_against_the_limits_of_now(
    root: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folders.finished(root, state="failed")
    plan = dataclasses.replace(plan_of("gpus=0", "cluster.time=10"), run_root=str(root)).bind(folder.name)
    store.write_json(folder / "plan.json", to_json(plan))
    record_submission(folder, queue="slurm", first_attempt=1)
    code_store.store(Path(plan.code_dir).parent, plan.code, {})
    smaller = dataclasses.replace(CLUSTER, partitions=(partition("gpu", default=True, max_minutes=5),))
    monkeypatch.setattr(slurm_probing, "probe", lambda: smaller)
    over = "is over the 5 minutes that partition gpu allows"
    monkeypatch.chdir(root)
    for words, says in (
        ({}, rf"cluster\.time=10 {over} \(as {folder.name} was submitted\)"),
        ({"cluster.time": "6"}, rf"cluster\.time=6 {over} \(command line\)"),
    ):
        with pytest.raises(UsageError, match=says):
            resume_here([Run(str(root), folder.name)], words, {}, is_sweep=False)
    assert not programs.calls() and not list(root.glob("*.silent"))  # as of an answer by the name of None


NO_ANSWER = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


def test_a_refusal_is_told_in_slurms_words_and_noted(root: Path, programs: Programs) -> None:
    programs.does("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    answer = root / "sbatch.1.out"
    with pytest.raises(UsageError, match=r"^Slurm refused the job: Invalid account$"):
        submit.sbatch(["sbatch", "run.sh"], answer)
    assert answer.with_suffix(".failed").exists()


@pytest.mark.parametrize("accepted", [True, False])
def test_a_job_without_an_answer_is_looked_for_in_the_queue(root: Path, programs: Programs, accepted: bool) -> None:
    programs.does("sbatch", NO_ANSWER)
    programs.does("squeue", f"echo '12|PENDING|None|{root}/run.sh'" if accepted else "true")
    answer = root / "sbatch.1.out"
    answer.touch()
    if accepted:
        assert submit.sbatch(["sbatch", f"{root}/run.sh"], answer) == "12"
    else:
        with pytest.raises(Unavailable, match=r"not known whether Slurm accepted the job: .* Socket timed out"):
            submit.sbatch(["sbatch", f"{root}/run.sh"], answer)
    assert not answer.with_suffix(".failed").exists()


def test_what_sbatch_says_of_a_job_that_it_accepts_is_shown_and_an_answer_without_a_job_is_refused(
    root: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.does("sbatch", "echo 'sbatch: low on hours' >&2; echo 7")
    assert submit.sbatch(["sbatch", "run.sh"], root / "sbatch.1.out") == "7"
    assert capsys.readouterr().err == "sbatch: sbatch: low on hours\n"
    assert not (root / "sbatch.1.err").exists()
    programs.does("sbatch", "echo queued")
    with pytest.raises(LauncherError, match=r"sbatch answered 'queued\\n', in which no job is named"):
        submit.sbatch(["sbatch", "run.sh"], root / "sbatch.2.out")
    assert capsys.readouterr().err == ""


def test_an_sbatch_that_does_not_answer_is_announced_once_and_then_left_to_itself(
    root: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit, "SAY_AFTER", 0.0)
    monkeypatch.setattr(submit, "GIVE_UP_AFTER", 1.5)
    programs.does("sbatch", f"until [ -e {root}/go ] || [ ! -d {root} ]; do sleep 0.1; done; echo 7")
    said = r"in ([2-9]|\d\d) s and is left to itself \(process \d+\); its answer will be in .*sbatch\.1"
    with pytest.raises(LauncherError, match=said):
        submit.sbatch(["sbatch", "run.sh"], root / "sbatch.1.out")
    assert capsys.readouterr().err.count("sbatch has not answered for") == 1
    (root / "go").touch()
    run_folders.until(lambda: (root / "sbatch.1.out").read_text() == "7\n")


@pytest.mark.usefixtures("programs")
def test_the_jobs_of_after_are_named_as_sbatch_names_them(root: Path) -> None:
    folders, elsewhere = [run_folders.finished(root, f"{SWEEP}-{index:03}") for index in range(2)], root / "x.out"
    record = {"queue": "slurm", "first_attempt": 1, "answer": str(elsewhere)}
    for index, folder in enumerate(folders):
        record_submission(folder, **record, array_index=index)
    plan = dataclasses.replace(plan_of("gpus=0"), run_root=str(root), after=f"{SWEEP},any:{folders[1].name}")
    with pytest.raises(UsageError, match=f"{SWEEP} is not a run of Slurm"):
        submit.after_jobs(plan)
    elsewhere.write_text("7\n")
    assert submit.after_jobs(plan) == ["afterok:7_0:7_1", "afterany:7_1"]
    assert submit.after_jobs(plan, {SWEEP}) == ["afterany:7_1"]
    assert submit.after_jobs(dataclasses.replace(plan, after=None)) == []


UNAVAILABLE = "echo 'sbatch: error: Requested node configuration is not available' >&2; exit 1"


@pytest.mark.parametrize(
    ("sbatch", "sinfo", "plans", "says"),
    [
        ("echo fine >&2", "", ("gpus=1", "gpus=2"), ""),
        ("echo 'sbatch: error: Invalid account x' >&2; exit 1", "", ("gpus=0",), "this job: Invalid account x$"),
        (
            "echo 'sbatch: error: Invalid account or account/partition' >&2; exit 1",
            "gpu*|n1 down",
            ("gpus=0 cluster.account=lab cluster.qos=long",),
            r"account/partition \(cluster\.account=lab\)$",
        ),
        (UNAVAILABLE, "gpu*|n[1-2] drained\\ncpu|n3 down\\ngpu*| mixed", ("gpus=0",), ""),
        (UNAVAILABLE, "cpu|n3 down", ("gpus=0",), "Requested node configuration is not available$"),
        (UNAVAILABLE, "gpu*|n[1-2] drained", ("gpus=1", "gpus=2"), "Requested node configuration is not available$"),
    ],
)
def test_a_job_is_refused_before_it_is_submitted_unless_nodes_that_are_away_may_take_it(
    programs: Programs, capsys: pytest.CaptureFixture[str], sbatch: str, sinfo: str, plans: tuple[str, ...], says: str
) -> None:
    programs.does("sbatch", f"cat >/dev/null; {sbatch}")
    programs.does("sinfo", f"printf '{sinfo}\\n'")
    planned = [plan_of(*words.split()) for words in plans]
    if says:
        with pytest.raises(UsageError, match=says):
            submit.test_only(planned)
        assert capsys.readouterr().err == ""
        return
    submit.test_only([*planned, planned[0]])
    assert programs.calls() == ["--test-only"] * len(planned)
    noted = capsys.readouterr().err
    assert not noted if not sinfo else "of the default partition, n[1-2] drained: the job waits in the queue" in noted
