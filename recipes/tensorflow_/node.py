"""Starts a trainer as one of several processes.

    python -m recipes.tensorflow_.node --workers=HOST:PORT,HOST:PORT --number=0 -m recipes.tensorflow_.mnist amp=o2

What `torch.distributed.run` is for torch: it tells the process where the others are, in TensorFlow's own variable
TF_CONFIG, and becomes the trainer.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence

USAGE = "usage: python -m recipes.tensorflow_.node --workers=HOST:PORT,... --number=N -m MODULE [WORD ...]"


def config(workers: Sequence[str], number: int) -> str:
    """TF_CONFIG of process `number`, counted from 0, among those that are to be found at `workers`."""
    if not 0 <= number < len(workers):
        raise ValueError(f"--number={number} of {len(workers)} workers")
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": number}})


def main(words: Sequence[str]) -> None:
    """Become the trainer. Exits with 2 for a command line that names no workers, number or module."""
    try:
        workers, number, flag, module, *rest = words
        if not workers.startswith("--workers=") or not number.startswith("--number=") or flag != "-m":
            raise ValueError(USAGE)
        named = workers.partition("=")[2].split(",")
        os.environ["TF_CONFIG"] = config(named, int(number.partition("=")[2]))
    except ValueError as error:
        print(error if str(error).startswith(("usage", "--number")) else USAGE, file=sys.stderr)
        raise SystemExit(2) from None
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
