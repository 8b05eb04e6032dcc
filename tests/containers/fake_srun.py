#!/usr/bin/env python3
"""Stands for an srun with pyxis at the process boundary: its own options apart, runs the command in the environment
that pyxis would make, in which the image's variables win unless they are named."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.containers.readers import pyxis

IMAGE = {"BOTH": "image", "LANG": "image", "FROM_IMAGE": "image", "PATH": "/usr/bin:/bin", "HOME": "/image"}

seen = pyxis(["srun", *sys.argv[1:]], os.environ)
for each in seen.mounts:
    if not Path(each.source).exists():
        sys.exit(f"fake srun: no mount source {each.source}")
os.chdir(seen.workdir)
os.execvpe(seen.argv[0], seen.argv, {**os.environ, **IMAGE, **seen.env})
