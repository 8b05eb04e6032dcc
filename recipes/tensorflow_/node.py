"""Starts a trainer as one of several processes.

    python -m recipes.tensorflow_.node --workers=HOST:PORT,HOST:PORT --number=0 -m recipes.tensorflow_.mnist amp=o2

What `torch.distributed.run` is for torch: it tells the process where the others are, in TensorFlow's own variable
TF_CONFIG, and becomes the trainer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from recipes.trainer import node


def config(workers: Sequence[str], number: int) -> str:
    """TF_CONFIG of process `number`, counted from 0, among those that are to be found at `workers`."""
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": number}})


def main(words: Sequence[str]) -> None:
    """Become the trainer. Exits with 2 for a command line that names no workers, number or module."""

    def tell(workers: Sequence[str], number: int) -> Sequence[str]:
        os.environ["TF_CONFIG"] = config(workers, number)
        return ()

    node.start("recipes.tensorflow_.node", words, tell)


if __name__ == "__main__":
    main(sys.argv[1:])
