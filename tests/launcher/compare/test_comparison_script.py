"""The script of a comparison under the real bash, with a stand-in for the trainer's Python."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys

import pytest

from launcher.code import code_store
from launcher.executors import execute
from launcher.plan.model import Compare
from launcher.runs import arms, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from tests.launcher.hosts import LAPTOP
from tests.launcher.run_folders import until
from tests.launcher.stand_in import every_word

from .test_comparison import planned

# Ends each block as a trainer does: after the steps of a block it stops, saved, and after the last one it is done.
TRAINER = """
import pathlib
folder = pathlib.Path(sys.argv[-1].removeprefix("run="))
attempt = os.environ["LAUNCHER_ATTEMPT"]
plan = json.load(open(folder / "plan.json"))
(folder / "seen").open("a").write(f"{attempt} {os.environ.get('WHAT')}\\n")
AT_FIRST
every, total = plan["settings"]["checkpoint"]["stop_every"], plan["settings"]["steps"]
done = len(list(folder.glob("attempts/*/stopped.json")))
if (done + 1) * every < total:
    (folder / "attempts" / attempt / "stopped.json").write_text("{}")
    sys.exit(85)
"""


def lay(tmp_path, program, *words, first="", rounds=2, setup=()):
    """A prepared comparison whose arms are run by the stand-in. `first` is done first of all in each block.

    The program that writes its result is the real one.
    """
    facts = dataclasses.replace(LAPTOP, run_root=str(tmp_path / "runs"), python=str(program))
    plan = planned(*words, how=Compare(rounds=rounds, steps=5, cool_down=0), facts=facts)
    (tmp_path / "runs").mkdir(exist_ok=True)
    code_store.store(tmp_path / "runs" / ".code", plan.code, {})
    added = {"DUMP": str(tmp_path / "dump"), "BEHAVIOUR": TRAINER.replace("AT_FIRST", first)}
    ready = tuple(dataclasses.replace(arm, env={**arm.env, **added}) for arm in plan.arms)
    return execute.prepare(dataclasses.replace(plan, arms=ready, python=sys.executable, setup=setup))


def begin(folder):
    argv = ["bash", str(folder / "run.sh")]
    return subprocess.Popen(argv, env=execute.environment(), start_new_session=True)


def run(folder):
    return begin(folder).wait()


def blocks(folder):
    return (folder / "blocks").read_text().splitlines()


def result(folder):
    return json.loads((folder / "result.json").read_text())


def state(folder):
    return store.read_json(folder / "status.json")["state"]


def test_every_arm_is_run_block_by_block_in_turn(tmp_path, program):
    folder = lay(tmp_path, program, "amp=o0,o1", rounds=3)
    assert run(folder) == 0
    assert blocks(folder) == ["00 85", "01 85", "01 85", "00 85", "00 0", "01 0"]
    assert state(folder) == "done"
    written = (folder / "result.json").read_bytes()
    assert json.loads(written)["comparison"]["control"] == "amp=o0", "its own job wrote it, and nobody looked"
    assert execute.outcome(folder) == json.loads(written), "what a submitit job of it gives"
    assert (folder / "result.json").read_bytes() == written, "one that is there is left as it is"
    for arm in ("00", "01"):
        assert state(folder / "arms" / arm) == "done"
        assert store.attempts(folder / "arms" / arm) == [1, 2, 3]


FAILURES = {
    "01": ("print('RuntimeError: CUDA out of memory.', file=sys.stderr); sys.exit(1)", "out of memory"),
    "02": ("print('ResourceExhaustedError: OOM', file=sys.stderr); sys.exit(1)", "out of memory"),
    "03": ('print("can\'t allocate memory", file=sys.stderr); sys.exit(1)', "out of memory"),
    "04": ("print('CUDA_ERROR_OUT_OF_MEMORY', file=sys.stderr); os.abort()", "out of memory"),
    "05": ("os.kill(os.getpid(), 9)", "killed"),
    "06": ("print('oh no', file=sys.stderr); sys.exit(1)", "exit code 1"),
}


@pytest.mark.parametrize(("failing", "code"), [(FAILURES.keys() - {"06"}, 0), ({"06"}, 1)])
def test_an_arm_that_runs_out_of_memory_is_a_row_and_one_that_fails_otherwise_a_failure(
    tmp_path, program, failing, code
):
    first = "".join(f"if folder.name == '{arm}':\n    {FAILURES[arm][0]}\n" for arm in sorted(failing))
    folder = lay(tmp_path, program, f"batch={','.join(str(8 * size) for size in range(1, 8))}", first=first)
    assert run(folder) == code
    outcome = result(folder)
    assert outcome["status"] == ("failed" if code else "done")
    once = ["00", *FAILURES]
    assert [line.split()[0] for line in blocks(folder)] == [*once, *reversed(once)]
    for number, arm in enumerate(once):
        name = folder / "arms" / arm
        if arm not in failing:
            assert state(name) == "done", "it is measured all the same"
            continue
        assert (name / "failed").read_text().strip() == FAILURES[arm][1]
        assert f"{arm} skipped" in blocks(folder)
        assert store.attempts(name) == [1], "it is not tried again"
        assert outcome["comparison"]["arms"][number]["state"] == "failed"


def test_a_block_of_several_ranks_that_stopped_is_measured(tmp_path, program):
    folder = lay(tmp_path, program, "amp=o0,o1", first="sys.exit = lambda code: os._exit(1) # as torchrun ends")
    assert run(folder) == 0
    assert blocks(folder) == ["00 85", "01 85", "01 0", "00 0"]


def test_where_every_arm_runs_out_of_memory_the_comparison_failed(tmp_path, program):
    folder = lay(tmp_path, program, "batch=8,16", first="print('out of memory', file=sys.stderr); sys.exit(1)")
    assert run(folder) == 1


def test_asked_to_stop_it_stops_saved_and_goes_on_where_it_was(tmp_path, program):
    waiting = (
        "import time\n"
        "if attempt == '1' and folder.name == '01':\n"
        "    while not (folder / 'STOP').exists(): time.sleep(0.02)\n"
        "    sys.exit(85)"
    )
    folder = lay(tmp_path, program, "amp=o0,o1", first=waiting)
    process = begin(folder)
    until((folder / "arms/01/seen").exists)
    (folder / "STOP").touch()
    assert process.wait() == 85
    assert state(folder) == "stopped"
    assert not (folder / "STOP").exists()
    assert blocks(folder) == ["00 85"], "the block that was broken off does not count"
    assert (result(folder)["status"], result(folder)["attempts"]) == ("stopped", 1)
    assert run(folder) == 0
    assert blocks(folder) == ["00 85", "01 85", "01 0", "00 0"]
    assert (result(folder)["status"], result(folder)["attempts"]) == ("done", 2)


def test_killed_it_leaves_nothing_running_and_measures_no_further(tmp_path, program):
    folder = lay(tmp_path, program, "amp=o0,o1", first="import time; time.sleep(600)")
    process = begin(folder)
    until((folder / "arms/00/seen").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    assert state(folder) == "failed"
    assert not (folder / "arms/01/seen").exists()
    assert not (folder / "result.json").exists(), "only its job writes it"
    assert subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False).stdout == ""


def test_the_state_of_an_arm_is_that_of_its_folder_and_of_the_comparison(tmp_path, program):
    folder = lay(tmp_path, program, "amp=o0,o1")
    control, other = arms.of(folder, store.read(PlanRecord, folder / "plan.json"))
    assert (control.label, other.label) == ("amp=o0", "amp=o1")
    running, arm = State("running", attempt=1), folder / "arms/01"
    assert arms.state(control.run, running) == State("queued", "its first block")
    assert run(folder) == 0
    assert arms.state(other.run, State("done")).name == "done"
    assert (arm / "block").read_text() == "1 2\n"
    (arm / "block").write_text("0 2\n")  # of a script, whose blocks are each done
    assert arms.state(other.run, running)[:2] == ("running", "its next block comes")
    assert arms.state(other.run, State("stopped")).name == "stopped"
    (arm / "block").unlink()
    assert arms.state(other.run, running).name == "done"
    store.write_json(arm / "status.json", {"state": "stopped", "attempt": 1})
    assert arms.state(other.run, running)[:2] == ("running", "its next block comes")
    assert arms.state(other.run, State("lost", "gone", attempt=1)).name == "lost"
    store.write_json(arm / "status.json", {"state": "failed", "attempt": 1})
    store.write_json(arm / "result.json", {"status": "failed", "attempts": 1, "reason": "a long story"})
    for failed, reason in (("out of memory", "it ran out of memory"), ("exit code 1", "a long story")):
        (arm / "failed").write_text(f"{failed}\n")
        assert arms.state(other.run, running)[:2] == ("failed", reason)
    (arm / "result.json").unlink()
    ends = {
        "exit code 139": "killed by signal 11",
        "exit code 255": "with exit code 255",
        "killed": "killed by signal 9",
    }
    for failed, reason in ends.items():
        (arm / "failed").write_text(f"{failed}\n")
        assert reason in arms.state(other.run, running).reason


def test_setup_may_set_a_variable_of_any_name_that_the_scripts_use(tmp_path, program):
    mine = every_word(lay(tmp_path, program, "amp=o0,o1"))
    folder = lay(tmp_path, program, "amp=o0,o1", setup=tuple(f"export {name}='{mine[name]}'" for name in mine))
    assert run(folder) == 0
    assert blocks(folder) == ["00 85", "01 85", "01 0", "00 0"]
    assert mine.items() <= json.loads((tmp_path / "dump").read_text())["env"].items()
