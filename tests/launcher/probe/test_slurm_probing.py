"""What Slurm's programs are asked, and what is made of their answers, which are a test's own here."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from launcher.errors import Unavailable
from launcher.probe import slurm_commands, slurm_probing
from tests.launcher.slurm.counted import Programs
from tests.launcher.slurm.test_text import PARTITIONS_SHOWN, QOS_SHOWN

SETTINGS = """\
AccountingStorageType   = accounting_storage/slurmdbd
MaxArraySize            = 42
PreemptMode             = REQUEUE
PreemptType             = preempt/TYPE
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setattr(slurm_probing, "_sizes", {})
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    programs = Programs(tmp_path / "programs")
    for name, text in (("sinfo", "cpu*|up|5:00|8|(null)|n1|1|1024\n"), ("sacctmgr", QOS_SHOWN)):
        programs.does(name, f"printf %s {shlex.quote(text)}")
    return programs


def answers(programs: Programs, kind: str) -> None:
    """The controller's, where jobs are preempted by this."""
    text = shlex.quote(SETTINGS.replace("TYPE", kind))
    programs.does("scontrol", f"case $2 in config) printf %s {text} ;; *) printf %s '{PARTITIONS_SHOWN}' ;; esac")


@pytest.mark.parametrize(
    ("kind", "names"), [("none", []), ("partition_prio", ["short"]), ("qos", ["normal", "low"]), ("other", [])]
)
def test_a_clusters_programs_are_asked_what_a_plan_needs(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, kind: str, names: list[str]
) -> None:
    answers(programs, kind)
    monkeypatch.setenv("SBATCH_QOS", "high")
    facts = slurm_probing.probe()
    assert ([partition.name for partition in facts.partitions], facts.max_array_size) == (["cpu"], 42)
    assert [row.name for row in facts.preemptible] == names
    assert facts.environment == {
        "PATH": f"{programs.folder}:{slurm_probing.STANDARD_PATH}",
        "SLURM_CONF": "/etc/other.conf",
    }
    assert (facts.accounting, facts.sbatch_variables) == (True, ("SBATCH_QOS",))
    (programs.folder / "sacct").unlink()
    assert not slurm_probing.probe().accounting
    (programs.folder / "scontrol").unlink()
    assert slurm_probing.max_array_size() == 42, "which needs no question"


def test_a_cluster_that_does_not_answer_is_told_in_its_words(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(programs, "none")
    programs.does("sinfo", "echo 'sinfo: error: no nodes'; exit 1")
    with pytest.raises(Unavailable, match=r"^sinfo failed: no nodes$"):
        slurm_probing.probe()
    programs.does("scontrol", "echo; echo 'slurm_load_ctl_conf error: none'; echo 'error: broken' >&2; exit 1")
    with pytest.raises(Unavailable, match=r"^Slurm's controller does not answer: broken$"):
        slurm_probing.probe()
    for name, remedy in (("sacct", "is slurmdbd up"), ("squeue", "is Slurm's controller up")):
        programs.does(name, "exec /bin/sleep 60")
        with pytest.raises(Unavailable, match=rf"^{name} did not answer in 0 s; {remedy}"):
            slurm_commands.call([name], timeout=0.1)
    (programs.folder / "sbatch").unlink()
    monkeypatch.setattr(slurm_probing, "adopt_login_path", list)
    with pytest.raises(Unavailable, match="there is no sbatch on"):
        slurm_probing.probe()


def test_nodes_that_are_away_are_those_of_the_partition_or_of_the_default_one(programs: Programs) -> None:
    programs.does("sinfo", "echo 'gpu*|n[1-2] drained'; echo 'cpu|n3 down'; echo 'gpu*|  '")
    assert slurm_probing.nodes_away(None) == ["n[1-2] drained"]
    assert slurm_probing.nodes_away("gpu,cpu") == ["n[1-2] drained", "n3 down"]
    assert [call.endswith("--partition=gpu,cpu") for call in programs.calls("sinfo")] == [False, True]


def test_programs_that_only_a_login_shell_finds_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", path := os.environ["PATH"])
    monkeypatch.setenv("SLURM_CONF", "/etc/mine.conf")
    profile = tmp_path / ".bash_profile"
    profile.write_text("echo hello; PATH=/opt/slurm; SLURM_CONF=/etc/site.conf")
    adopt = slurm_commands.adopt_login_path.__wrapped__
    adopt()
    assert (os.environ["PATH"], os.environ["SLURM_CONF"]) == (f"{path}:/opt/slurm", "/etc/mine.conf")
    monkeypatch.delenv("SLURM_CONF")
    adopt()
    assert os.environ["SLURM_CONF"] == "/etc/site.conf"
    profile.write_text("exit 0")
    monkeypatch.setenv("PATH", path)
    adopt()
    assert os.environ["PATH"] == path


def test_a_complaint_is_without_the_name_of_its_program() -> None:
    for out, err, told in (("", " \n", "exit code 3"), ("sbatch: no\n\nfatal: yes\n", "", "no; yes"), ("a", "b", "b")):
        assert slurm_commands.complaint(subprocess.CompletedProcess([], 3, out, err)) == told
