"""What runs on the far side: standard library only, and the same from the zip as from its files."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile

from launcher.ssh.archive import archive
from launcher.ssh.methods import REQUESTS


def test_every_module_in_the_zip_loads_from_it_with_nothing_but_the_standard_library(tmp_path):
    digest, zipped = archive()
    path = tmp_path / f"agent-{digest}.zip"
    path.write_bytes(zipped)
    # What lies deeper in amp_launcher may need numpy; what the launcher imports of it is loaded along with that.
    packed = zipfile.ZipFile(io.BytesIO(zipped)).namelist()
    names = [
        name
        for name in packed
        if name.endswith(".py") and not (name.startswith("amp_launcher/") and name.count("/") > 1)
    ]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    program = (
        f"import sys, importlib; sys.path[:] = [{str(path)!r}] + [p for p in sys.path if 'site-packages' not in p]\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "from launcher.executors.ssh.agent import ANSWERS\n"
        f"assert sorted(ANSWERS) == {sorted(REQUESTS)!r}\n"
        "foreign = {'hydra', 'omegaconf', 'submitit', 'fabric', 'paramiko', 'yaml', 'rich', 'torch', 'numpy'}\n"
        "assert not foreign & sys.modules.keys(), foreign & sys.modules.keys()\n"
        "from launcher.containers import catalogue; assert catalogue.releases()  # data files come along\n"
    )
    done = subprocess.run([sys.executable, "-S", "-E", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_zip_is_reproducible_and_named_by_its_digest():
    first = archive()
    archive.cache_clear()
    assert archive() == first
