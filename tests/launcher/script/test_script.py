"""`run.sh` under the real bash. In place of the trainer's Python stands a program of ours: a process boundary."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.code import code_store
from launcher.executors import execute
from launcher.plan.resolve import resolve
from launcher.script.trainer_command import command
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import until
from tests.launcher.stand_in import every_word, lay

STOPPED = "open(sys.argv[-1][4:] + '/attempts/1/stopped.json', 'w').write('{}'); sys.exit(85)"


def run(folder):
    return subprocess.run(["bash", str(folder / "run.sh")], env=execute.environment(), timeout=60).returncode


def status(folder):
    found: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return found


def test_a_good_end_is_done_with_its_logs_and_identity(tmp_path, program):
    _, folder = lay(tmp_path, program)
    assert run(folder) == 0
    found = status(folder)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("done", 0, 1)
    assert found["ended"] >= found["started"]
    assert found["process"]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (folder / "attempts/1/stdout.log").read_text() == "to stdout\n"
    assert (folder / "attempts/1/stderr.log").read_text() == "to stderr\n"


def test_the_trainer_gets_the_words_of_the_plan_in_the_snapshot(tmp_path, program):
    plan, folder = lay(tmp_path, program, "amp=o2", "batch=512")
    run(folder)
    dump = json.loads((tmp_path / "dump").read_text())
    bound = plan.bind(folder.name)
    assert dump["argv"] == list(command(bound))
    assert dump["cwd"] == bound.code_dir
    assert dump["env"]["LAUNCHER_RUN_ID"] == folder.name
    assert dump["env"]["PYTHONPATH"] == bound.code_dir


@pytest.mark.parametrize(
    ("behaviour", "code", "state", "reason"),
    [
        ("sys.exit(1)", 1, "failed", "the trainer ended with exit code 1"),
        ("sys.exit(2)", 2, "failed", "the trainer refused its settings"),
        ("os.kill(os.getpid(), 9)", 137, "failed", "the trainer was killed by signal 9"),
        ("os.abort()", 134, "failed", "the trainer was killed by signal 6"),
        ("sys.exit(85)", 85, "failed", "the trainer ended with exit code 85"),
        (STOPPED, 85, "stopped", ""),
    ],
)
def test_an_end_other_than_a_good_one_has_its_reason_in_words(tmp_path, program, behaviour, code, state, reason):
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    assert run(folder) == code
    assert (status(folder)["state"], status(folder)["exit_code"], status(folder)["reason"]) == (state, code, reason)


@pytest.mark.parametrize(
    ("file", "code", "state", "reason"),
    [("cancelled", 1, "cancelled", "cancelled before it started"), ("STOP", 85, "stopped", "before it started")],
)
def test_a_run_that_was_cancelled_or_asked_to_stop_before_it_starts_never_starts(
    tmp_path, program, file, code, state, reason
):
    _, folder = lay(tmp_path, program)
    (folder / file).write_text("{}")
    assert run(folder) == code
    assert (status(folder)["state"], status(folder)["reason"]) == (state, reason)
    assert not (tmp_path / "dump").exists()


def test_every_start_is_an_attempt_of_its_own(tmp_path, program):
    _, folder = lay(tmp_path, program)
    run(folder)
    run(folder)
    assert status(folder)["attempt"] == 2
    assert sorted(each.name for each in (folder / "attempts").iterdir()) == ["1", "2"]


def test_term_reaches_the_trainer_and_the_end_is_written_down(tmp_path, program):
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": "time.sleep(60)"})
    started = subprocess.Popen(["bash", str(folder / "run.sh")], start_new_session=True)
    until((tmp_path / "dump").exists)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait(timeout=60) == 143
    assert (status(folder)["state"], status(folder)["reason"]) == ("failed", "ended by a signal from outside")


TEXT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs", "Cc")), max_size=60)
SHELL = st.lists(st.sampled_from(["$(id)", "`id`", "'", '"', "\\", "$HOME", "${x}", "&", ";", "|", "*", "~", " ", "-"]))


VALUES = st.lists(st.one_of(TEXT, SHELL.map("".join)), min_size=1, max_size=12)
NAME = TEXT.filter(lambda text: "/" not in text and text.strip(" ."))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=VALUES, names=st.lists(NAME, min_size=1, max_size=4))
def test_any_value_and_any_folder_arrive_byte_for_byte(tmp_path, program, values, names):
    root = tmp_path.joinpath("nested", *names)
    facts = dataclasses.replace(LAPTOP, run_root=str(root), python=str(program))
    plan = resolve(spec_of(), facts)
    given_values = {f"VALUE_{number}": value for number, value in enumerate(values)}
    plan = dataclasses.replace(plan, env={**plan.env, **given_values, "DUMP": str(tmp_path / "dump")})
    root.mkdir(parents=True, exist_ok=True)
    code_store.store(root / ".code", plan.code, {})
    folder = execute.prepare(plan)
    assert run(folder) == 0
    dump = json.loads((tmp_path / "dump").read_text())
    assert given_values.items() <= dump["env"].items()
    assert dump["argv"] == list(command(plan.bind(folder.name)))


def test_100_kb_of_text_arrive(tmp_path, program):
    value = "é'\"$" * 25_000
    _, folder = lay(tmp_path, program, env={"VALUE": value})
    assert run(folder) == 0
    assert json.loads((tmp_path / "dump").read_text())["env"]["VALUE"] == value


def test_a_secret_reaches_the_trainer_and_stands_nowhere_in_the_folder(tmp_path, program):
    key = tmp_path / "key file"
    key.write_text("hunter2 $(id)\n")
    key.chmod(0o600)
    _, folder = lay(tmp_path, program, secrets={"API_KEY": str(key)})
    assert run(folder) == 0
    assert json.loads((tmp_path / "dump").read_text())["env"]["API_KEY"] == "hunter2 $(id)"
    for path in folder.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_what_a_surrounding_job_left_does_not_reach_the_trainer(tmp_path, program, monkeypatch):
    for name in ("SLURM_JOB_ID", "RANK", "WORLD_SIZE", "PMI_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "7")
    _, folder = lay(tmp_path, program)
    run(folder)
    seen = json.loads((tmp_path / "dump").read_text())["env"]
    assert not {"SLURM_JOB_ID", "RANK", "WORLD_SIZE", "PMI_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & seen.keys()


def test_the_folder_is_the_users_alone(tmp_path, program):
    _, folder = lay(tmp_path, program)
    run(folder)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_shell_whose_run_was_started_again_elsewhere_writes_nothing_more(tmp_path, program):
    behaviour = "os.mkdir(sys.argv[-1][4:] + '/attempts/2')"
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    assert run(folder) == 1
    assert (status(folder)["state"], status(folder)["attempt"]) == ("running", 1)


def test_two_starts_at_once_are_two_attempts(tmp_path, program):
    _, folder = lay(tmp_path, program)
    started = [subprocess.Popen(["bash", str(folder / "run.sh")], start_new_session=True) for _ in range(8)]
    for each in started:
        each.wait(timeout=60)
    assert sorted(int(each.name) for each in (folder / "attempts").iterdir()) == list(range(1, 9))
    assert (folder / "attempts/8/stdout.log").read_text() == "to stdout\n"


def test_a_run_folder_that_was_deleted_is_not_made_again(tmp_path, program):
    _, folder = lay(tmp_path, program)
    script = (folder / "run.sh").rename(tmp_path / "run.sh")
    shutil.rmtree(folder)
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"the run folder {folder} is gone\n")
    assert not folder.exists()


@pytest.mark.parametrize("by_setup", [False, True], ids=["env", "cluster.setup"])
def test_a_user_may_set_a_variable_of_any_name_that_the_scripts_use(tmp_path, program, by_setup):
    """Else the run could end otherwise, or the trainer see another value."""
    mine = every_word(lay(tmp_path, program, "telemetry.every=1")[1])
    setup = tuple(f"export {name}='{value}'" for name, value in mine.items())
    _, folder = lay(tmp_path, program, "telemetry.every=1", **({"setup": setup} if by_setup else {"env": mine}))
    assert run(folder) == 0
    assert status(folder)["state"] == "done"
    assert mine.items() <= json.loads((tmp_path / "dump").read_text())["env"].items()
