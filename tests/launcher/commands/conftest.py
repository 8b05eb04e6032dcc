import os
import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def bed(testbed, monkeypatch):
    """The testbed, with its commands on the PATH."""
    for name, value in {**testbed.environment, "OMP_NUM_THREADS": "1", "APPTAINER_USERNS": "1"}.items():
        monkeypatch.setenv(name, value)
    return testbed


@pytest.fixture
def over_ssh(bed):
    """Words for the testbed's host over SSH, with a run root of the test's own there."""
    folder = Path(tempfile.mkdtemp(prefix="commands-", dir=bed.user.home))
    os.chown(folder, bed.user.uid, bed.user.gid)
    host = ("cluster=ssh", "cluster.host=testbed", f"cluster.ssh_config={bed.ssh.config}")
    yield (*host, f"python={bed.python}", f"run_root={folder}")
    shutil.rmtree(folder, ignore_errors=True)
