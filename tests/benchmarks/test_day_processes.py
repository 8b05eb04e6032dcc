"""What a day started ends with it, or with the time of a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.day import processes
from tests.launcher.run_folders import until
from tests.patience import scaled

ROOT = Path(__file__).parents[2]
LEAVES_A_CHILD = """
import subprocess, sys, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)  # it holds the output open
time.sleep({seconds})
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_takes_too_long_ends_with_what_it_started() -> None:
    done = processes.run([sys.executable, "-c", LEAVES_A_CHILD.format(seconds=600)], seconds=scaled(3), cwd=ROOT)
    assert done.returncode == 124
    assert "not done in" in done.stderr
    until(lambda: not is_alive(int(done.stdout)))


def test_a_command_that_ends_leaves_nothing_on_a_gpu() -> None:
    done = processes.run([sys.executable, "-c", LEAVES_A_CHILD.format(seconds=0)], seconds=60, cwd=ROOT)
    assert done.returncode == 0
    until(lambda: not is_alive(int(done.stdout)))


RUNS = """
import os, sys
from pathlib import Path
from benchmarks.day import processes
command = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} '); time.sleep(600)"
processes.run([sys.executable, "-c", command, sys.argv[1]], seconds=600, cwd=Path.cwd())
"""


def test_a_command_does_not_outlive_who_runs_it(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    running = subprocess.Popen([sys.executable, "-c", RUNS, str(said)], cwd=ROOT)
    pid = int(until(lambda: said.exists() and said.read_text().rstrip()))
    running.kill()
    running.wait()
    until(lambda: not is_alive(pid))


DAY = """
import os, subprocess, sys, time
from benchmarks.day import processes
with processes.home() as home:
    environ = {**os.environ, "LAUNCHER_SPEC": f"{home}/runs/one/plan.json"}
    left = subprocess.Popen(["sleep", "600"], env=environ, stdout=subprocess.DEVNULL, start_new_session=True)
    print(home, left.pid, flush=True)
    {end}
"""


def _day(end: str) -> tuple[subprocess.Popen[str], Path, int]:
    argv = [sys.executable, "-c", DAY.replace("{end}", end)]
    day = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert day.stdout is not None
    home, pid = day.stdout.readline().split()
    return day, Path(home), int(pid)


def test_a_day_that_ends_leaves_no_run_and_no_folder() -> None:
    day, home, pid = _day("pass")
    assert day.wait() == 0
    assert (is_alive(pid), home.exists()) == (False, False)


def test_a_day_that_is_killed_leaves_no_run_and_no_folder() -> None:
    day, home, pid = _day("time.sleep(600)")
    assert is_alive(pid) and home.exists()
    os.killpg(day.pid, signal.SIGKILL)
    day.wait()
    until(lambda: not is_alive(pid) and not home.exists())
