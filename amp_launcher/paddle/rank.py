"""Starts a module as one of several processes: `paddle.distributed.launch` takes a file, not a module's name.

python -m paddle.distributed.launch --nproc_per_node=2 amp_launcher/paddle/rank.py recipes.mnist.train_paddle amp=o1
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
