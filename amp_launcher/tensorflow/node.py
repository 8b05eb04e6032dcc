"""Starts a trainer as one of several processes:

    python -m amp_launcher.tensorflow.node --workers=HOST:PORT,HOST:PORT --number=0 -m MODULE amp=o2

It sets the addresses of all processes in TensorFlow's variable TF_CONFIG and becomes the trainer, as
`torch.distributed.run` does for torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from amp_launcher.world import node


def config(workers: Sequence[str], number: int) -> str:
    """TF_CONFIG of process `number`, counted from 0, of the processes with the addresses `workers`."""
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": number}})


def main(words: Sequence[str]) -> None:
    """Become the trainer. Exits with 2 for a command line without workers, number or module."""

    def tell(workers: Sequence[str], number: int) -> Sequence[str]:
        os.environ["TF_CONFIG"] = config(workers, number)
        return ()

    node.start("amp_launcher.tensorflow.node", words, tell)


if __name__ == "__main__":
    main(sys.argv[1:])
