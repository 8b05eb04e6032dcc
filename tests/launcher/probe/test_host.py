from __future__ import annotations

import dataclasses
import subprocess

import pytest

from launcher.config.schema import OWN_FOLDER
from launcher.probe.host import ends_at_logout, facts_of
from launcher.probe.questions import Questions
from tests.launcher.hosts import LAPTOP


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Questions(
        **{"slurm": False, "container": "docker", "image": None, "cache": "", "pull": False, "python": "/opt/python"},
        **{"uv": "", "run_root": "runs", "shared": False, "folders": (), "data_files": (), "workdirs": ()},
        **{"inputs": (), "mounts": (), "programs": ()},
    )


def test_of_what_a_job_names_the_facts_say_what_is_there_and_what_is_missing(asked, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("abc")
    (tmp_path / "data/dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "tell").touch(0o755)
    named = {"folders": ("data", "gone"), "data_files": ("data/a", "data/b", "data/dangling", "data")}
    named |= {"workdirs": (OWN_FOLDER, "nowhere"), "inputs": ("link", "lost"), "mounts": ("data", "away")}
    facts = facts_of(dataclasses.replace(asked, **named, programs=("./tell", "no-such-program")))
    assert facts.missing == (f"{tmp_path}/away", "gone", "lost", "nowhere")
    assert facts.folders == {"data": ("a", "dangling")}
    assert facts.file_sizes == {"data/a": 3, "data/dangling": None, "data": None}
    assert facts.programs == {"./tell": f"{tmp_path}/tell"}
    assert facts.real_paths == {f"{tmp_path}/link": f"{tmp_path}/data"}
    shown = subprocess.check_output(["df", "--output=fstype", tmp_path], text=True)
    assert facts.run_root_filesystem == shown.split()[-1]
    assert (facts.run_root, facts.run_root_problem, facts.python) == (f"{tmp_path}/runs", "", "/opt/python")
    assert facts_of(dataclasses.replace(asked, python=None)).python == "python3", "the image's"


def test_a_path_of_a_request_is_absolute_by_the_hosts_home_and_folder():
    here, paths = LAPTOP.cwd, ("~", "~/a", "~a", "a/../b", "/a")
    assert [*map(LAPTOP.absolute, paths)] == ["/home/mei", "/home/mei/a", f"{here}/~a", f"{here}/b", "/a"]


def test_a_run_root_where_nothing_can_be_made_is_a_problem(asked, tmp_path):
    (tmp_path / "file").touch()
    problem = facts_of(dataclasses.replace(asked, run_root="file/runs")).run_root_problem
    assert problem == f"{tmp_path}/file is not a folder"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Login]\nKillUserProcesses=yes\n", True),
        ("[Login]\nKillUserProcesses = true\n", True),
        ("[Login]\n#KillUserProcesses=yes\n", False),
        ("[Login]\nKillUserProcesses=yes\nKillUserProcesses=no\n", False),
        ("", False),
    ],
)
def test_whether_processes_end_at_logout_is_read_from_logind_conf(tmp_path, text, expected):
    (tmp_path / "logind.conf").write_text(text)
    assert ends_at_logout("mei", [str(tmp_path / "logind.conf")], str(tmp_path / "linger")) is expected


def test_a_later_file_wins_and_a_lingering_user_is_exempt(tmp_path):
    (tmp_path / "logind.conf.d").mkdir()
    (tmp_path / "logind.conf.d" / "50-site.conf").write_text("KillUserProcesses=yes\n")
    places = [str(tmp_path / "none.conf"), str(tmp_path / "logind.conf.d")]
    assert ends_at_logout("mei", places, str(tmp_path / "linger"))
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / "mei").touch()
    assert not ends_at_logout("mei", places, str(tmp_path / "linger"))
