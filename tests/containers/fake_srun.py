#!/usr/bin/env python3
"""Stands for an srun with pyxis at the process boundary: takes its own options apart, and runs the command in the
environment that pyxis would make, in which the image's variables win unless --container-env names them."""

import os
import sys

IMAGE = {"BOTH": "image", "LANG": "image", "FROM_IMAGE": "image", "PATH": "/usr/bin:/bin", "HOME": "/image"}

count = next(index for index, word in enumerate(sys.argv) if index and not word.startswith("-"))
options = dict(word.partition("=")[::2] for word in sys.argv[1:count])
named = {name: os.environ[name] for name in options["--container-env"].split(",") if name in os.environ}
for mount in options["--container-mounts"].split(","):
    if not os.path.exists(source := mount.split(":")[0]):
        sys.exit(f"fake srun: no mount source {source}")
os.chdir(options["--container-workdir"])
os.execvpe(sys.argv[count], sys.argv[count:], {**os.environ, **IMAGE, **named})
