"""A user's own script in torch: `python -m amp_launcher.torch.script amp=o1 script=train.py -- --lr 0.1`."""

from __future__ import annotations

import functools
import sys

from amp_launcher.around import wrap
from amp_launcher.torch.spawned_rank import SpawnedRank
from amp_launcher.torch.wrapper import TorchWrapper

if __name__ == "__main__":
    sys.exit(wrap.main("torch", sys.argv[1:], functools.partial(TorchWrapper, as_rank=SpawnedRank)))
