import subprocess
import sys

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
