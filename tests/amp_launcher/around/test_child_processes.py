import os
import signal
import subprocess
import sys

import pytest

from amp_launcher.around.child_processes import ChildProcesses

BUSY = "import time\nwhile time.process_time() < 1.2: pass\n"


def compute():
    subprocess.run([sys.executable, "-c", BUSY], check=True)


def test_what_processes_computed_before_is_not_counted():
    compute()
    children = ChildProcesses()
    assert children.told() == ""
    compute()
    assert "processes that the script started computed for 1 s" in children.told()


@pytest.mark.parametrize(("library", "told"), [("libtorch_cpu.so", True), ("libz.so", False)])
def test_living_processes_that_have_a_framework_are_counted(tmp_path, library, told):
    """As those in which Ray trains, which live as long as the script; those of a tracker train nothing."""
    (file := tmp_path / library).write_bytes(b"\0" * 4096)
    has = f"import mmap\nfile = open({str(file)!r}, 'r+b')\nheld = mmap.mmap(file.fileno(), 0)\n"
    waits = "print(flush=True)\ntime.sleep(600)"
    words = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, has + BUSY + waits]
    children = ChildProcesses()
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as started:
        try:
            assert started.stdout.readline() == b"\n"
            assert ("processes that the script started computed for 1 s" in children.told()) == told
            assert ChildProcesses().told() == "", "of those that ran before the script nothing is counted"
        finally:
            os.killpg(started.pid, signal.SIGKILL)
