"""`run.sh` under the real bash. In place of the trainer's Python stands a program of ours: a process boundary."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.code import code_store
from launcher.executors import execute
from launcher.plan.model import ScriptPlan
from launcher.plan.resolve import resolve
from launcher.runs import store
from launcher.script.trainer_command import command
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import until
from tests.launcher.stand_in import every_word, lay

STOPPED = "open(sys.argv[-1][4:] + '/attempts/1/stopped.json', 'w').write('{}'); sys.exit(85)"

SAMPLED = """run = sys.argv[-1][4:]; os.makedirs(run + '/telemetry', exist_ok=True)
path = run + '/telemetry/1-0.host.csv'
os.path.exists(path) and os.unlink(path)
open(path, 'w').write('heads\\n1, 2, 3, 200000, 8000000\\n2, 2, 3, 7000000, 8000000\\n')"""


def run(folder):
    return subprocess.run(["bash", str(folder / "run.sh")], env=execute.environment()).returncode


def status(folder):
    return json.loads((folder / "status.json").read_text())


def seen(tmp_path):
    """What the trainer was started with: argv, env and cwd."""
    return json.loads((tmp_path / "dump").read_text())


def test_the_trainer_gets_the_plans_words_variables_and_secrets_and_its_run_is_done(tmp_path, program, monkeypatch):
    of_another_job = {"SLURM_JOB_ID", "RANK", "WORLD_SIZE", "PMI_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}
    unnamed = {"CUDA_HOME", "DB_PASSWORD", "OMP_NUM_THREADS"}
    for name in of_another_job | unnamed:
        monkeypatch.setenv(name, "7")
    key, long = tmp_path / "key file", "é'\"$" * 25_000
    key.write_text("hunter2 $(id)\n")
    key.chmod(0o600)
    plan, folder = lay(tmp_path, program, "amp=o2", "batch=512", env={"LONG": long}, secrets={"API_KEY": str(key)})
    assert run(folder) == 0
    record = status(folder)
    assert (record["state"], record["exit_code"], record["attempt"]) == ("done", 0, 1)
    assert record["ended"] >= record["started"]
    assert record["process"]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for stream in ("stdout", "stderr"):
        assert (folder / f"attempts/1/{stream}.log").read_text() == f"to {stream}\n"
    bound, trainer = plan.bind(folder.name), seen(tmp_path)
    assert (trainer["argv"], trainer["cwd"]) == (list(command(bound)), bound.code_dir)
    expected = {"LAUNCHER_RUN_ID": folder.name, "PYTHONPATH": bound.code_dir, "LONG": long, "API_KEY": "hunter2 $(id)"}
    assert expected.items() <= trainer["env"].items()
    assert not (of_another_job | unnamed) & trainer["env"].keys()
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"{path} is open to others"
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), f"{path} holds the secret"


@pytest.fixture
def small_group():
    """A control group of 200 MiB, of either version of cgroups."""
    top = Path("/sys/fs/cgroup")
    old = (top / "memory").is_dir()
    group = top / ("memory" if old else "") / f"launcher-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(200 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.parametrize("ends", ["", "; sys.exit(os.waitpid(-1, 0)[1] and 1)"], ids=["itself", "a worker"])
def test_the_kernels_kill_for_lack_of_memory_is_the_reason(tmp_path, program, small_group, ends):
    fork = "os.fork() or " if ends else ""
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": f"{fork}bytearray(os.urandom(1)) * 2**29{ends}"})
    enter = f"echo $$ >{small_group}/cgroup.procs && exec bash {folder}/run.sh"
    subprocess.run(["bash", "-c", enter], env=execute.environment())
    ended = "ended with exit code 1" if ends else "was killed by signal 9"
    assert status(folder)["reason"] == f"the trainer {ended}; meanwhile the kernel killed a process for lack of memory"


@pytest.mark.parametrize(
    ("behaviour", "code", "state", "reason"),
    [
        ("sys.exit(1)", 1, "failed", "the trainer ended with exit code 1"),
        ("sys.exit(2)", 2, "failed", "the trainer refused its settings"),
        ("os.kill(os.getpid(), 9)", 137, "failed", "the trainer was killed by signal 9"),
        (
            f"{SAMPLED}; os.kill(os.getpid(), 9)",
            137,
            "failed",
            "the trainer was killed by signal 9; before that 0.2 of 8.1 GB of memory were free",
        ),
        ("os.abort()", 134, "failed", "the trainer was killed by signal 6"),
        ("sys.exit(255)", 255, "failed", "the trainer ended with exit code 255"),
        ("sys.exit(85)", 85, "failed", "the trainer ended with exit code 85"),
        (STOPPED, 85, "stopped", ""),
    ],
)
def test_an_end_other_than_a_good_one_has_its_reason_in_words(tmp_path, program, behaviour, code, state, reason):
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    assert run(folder) == code
    expected = {"state": state, "exit_code": code, "reason": reason}
    assert expected.items() <= status(folder).items()


@pytest.mark.parametrize("secret", [True, False])
def test_a_job_with_secrets_leaves_no_core_dump_which_would_keep_them(tmp_path, program, monkeypatch, secret):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] == 0:
        pytest.skip("no process may dump its core here")
    key = tmp_path / "key"
    key.touch(mode=0o600)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        behaviour = "import resource; sys.exit(10 + (resource.getrlimit(resource.RLIMIT_CORE)[0] == 0))"
        _, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour}, secrets={"KEY": str(key)} if secret else {})
        assert run(folder) == 10 + secret
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.parametrize("code", [1, 2])
def test_the_reason_calls_a_script_a_script(tmp_path, program, code):
    script = ScriptPlan(file="script/train.py", in_image=False, workdir=str(tmp_path), bare=True)
    _, folder = lay(tmp_path, program, script=script, env={"BEHAVIOUR": f"sys.exit({code})"})
    assert run(folder) == code
    assert status(folder)["reason"] == f"the script ended with exit code {code}"


@pytest.mark.parametrize(
    ("file", "code", "state", "reason"),
    [("cancelled", 1, "cancelled", "before it started"), ("STOP", 85, "stopped", "before it started")],
)
def test_a_run_that_was_cancelled_or_asked_to_stop_before_it_starts_never_starts(
    tmp_path, program, file, code, state, reason
):
    _, folder = lay(tmp_path, program)
    (folder / file).write_text("{}")
    assert run(folder) == code
    assert (status(folder)["state"], status(folder)["reason"]) == (state, reason)
    assert not (tmp_path / "dump").exists()


def test_term_reaches_the_trainer_and_the_end_is_written_down(tmp_path, program):
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": "time.sleep(60)"})
    started = subprocess.Popen(["bash", str(folder / "run.sh")], start_new_session=True)
    until((tmp_path / "dump").exists)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait() == 143
    assert (status(folder)["state"], status(folder)["reason"]) == ("failed", "ended by a signal from outside")


READS_STOP = """
while not os.path.exists(sys.argv[-1][4:] + '/STOP'): time.sleep(0.05)
open(sys.argv[-1][4:] + '/attempts/1/stopped.json', 'w').write('{}'); sys.exit(85)"""
DEAF = "import signal; signal.signal(signal.SIGTERM, lambda *_: None)\nwhile True: time.sleep(0.1)"
LATE = "time limit; it did not end within 1 s of the request to save and stop"


@pytest.mark.parametrize(
    ("behaviour", "code", "state", "reason"),
    [(READS_STOP, 85, "stopped", ""), ("time.sleep(600)", 143, "failed", LATE), (DEAF, 137, "failed", LATE)],
    ids=["it saves", "TERM ends it", "KILL ends it"],
)
def test_at_its_time_limit_a_run_is_asked_to_save_then_ended(tmp_path, program, behaviour, code, state, reason):
    _, folder = lay(tmp_path, program, "cluster.time=1", env={"BEHAVIOUR": behaviour})
    text = (folder / "run.sh").read_text()
    assert "LAUNCHER_LIMIT=60 LAUNCHER_STOP_BEFORE=30" in text
    (folder / "run.sh").write_text(text.replace("LIMIT=60 LAUNCHER_STOP_BEFORE=30", "LIMIT=2 LAUNCHER_STOP_BEFORE=1"))
    started = subprocess.Popen(["bash", str(folder / "run.sh")], env=execute.environment(), start_new_session=True)
    assert started.wait() == code
    assert {"state": state, "reason": reason}.items() <= status(folder).items()
    assert "Killed                  end_at_limit" not in (folder / "attempts/1/stderr.log").read_text()


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
    assert given_values.items() <= seen(tmp_path)["env"].items()
    assert seen(tmp_path)["argv"] == list(command(plan.bind(folder.name)))


def test_a_shell_whose_run_was_started_again_elsewhere_writes_nothing_more(tmp_path, program):
    behaviour = "os.mkdir(sys.argv[-1][4:] + '/attempts/2')"
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    assert run(folder) == 1
    assert (status(folder)["state"], status(folder)["attempt"]) == ("running", 1)


def test_every_start_is_an_attempt_of_its_own_also_several_at_once(tmp_path, program):
    _, folder = lay(tmp_path, program)
    shells = [subprocess.Popen(["bash", str(folder / "run.sh")], start_new_session=True) for _ in range(8)]
    for shell in shells:
        shell.wait()
    assert sorted(store.attempts(folder)) == list(range(1, 9))
    assert (folder / "attempts/8/stdout.log").read_text() == "to stdout\n"
    assert run(folder) == 0
    assert (status(folder)["state"], status(folder)["attempt"]) == ("done", 9)


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
    assert mine.items() <= seen(tmp_path)["env"].items()
