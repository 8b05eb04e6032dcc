"""`python -m benchmarks scripts`: training scripts of public repositories and packages, alone and under the launcher.

Each row of `scripts.yaml` is a script that nobody here wrote. It is run alone twice (what differs then is not
compared), at amp=o0, at amp=o1, and, where its library has a mode of its own, in it alone and under the launcher with
`train.precision=script`. One into which our edits put the calls of a precision is run in each of its modes, alone and
under the launcher, and once more cut short and resumed.
Compared are the exit code, the losses printed and the files written. docs/scripts-tried.md is written after each row;
the first result of a row is kept beside the newest in benchmarks/results/scripts-tried.json.

To add a row, append to `scripts.yaml`:

    NAME:
      about: one line
      repository: https://github.com/OWNER/NAME   # and a commit; or `package: NAME`, which requirements pin
      commit: 40 hex digits
      folders: [examples/x]       # fetch only these folders; all by default
      requirements: [torch==2.13.0, x==1.2]       # all pinned; rows with the same ones share an environment
      inputs: |                   # Python, run once where the script starts, that makes small data and configurations
        open("input.txt", "w").write("hello " * 1000)
      edits: [[train.py, "STEPS = 100000", "STEPS = 20"]]   # file, old, new: for what no argument can shorten or seed
      folder: examples/x          # where it starts, in the repository; its root by default
      script: train.py            # from that folder; of a package, from site-packages
      arguments: [--steps, "20"]
      environ: {WANDB_MODE: offline}
      losses: 'loss ([\\d.]+)'    # what it prints, one group; at least one line has to match
      weights: out/*.pt           # files that have to be written and compared; leave out where it saves none
      own: {arguments: [--bf16], environ: {}}     # what is added for the library's own mode, a bfloat16 autocast
      modes: [o0, o2]             # of a script with the calls of a precision (in its edits), which takes PRECISION
      halves: [[--steps, "9"], [--resume]]        # then: added in each mode to a run cut short, and to its resume
      right: {o1: [contradicted, its weights are float64]}    # where a mode is rightly not proved, and why

Keep a run under half a minute: a tiny model with random weights, made-up data, a seed. Nothing may be downloaded when
the script runs. Then `python -m benchmarks scripts --only NAME`, and commit what it wrote.
Repositories come by git (`url.BASE.insteadOf` of git's configuration reaches a mirror), packages by pip.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from benchmarks import hardware
from benchmarks.places import RESULTS
from benchmarks.scripts import page, running
from benchmarks.scripts.environments import Unavailable
from benchmarks.scripts.table import ROWS, Row, read

PAGE = Path(__file__).parents[2] / "docs" / "scripts-tried.md"
RECORD = RESULTS / "scripts-tried.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amp-launcher" / "scripts"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scripts", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument(
        "--dir", type=Path, default=CACHE, help="environments, repositories, runs; default: %(default)s"
    )
    options = parser.parse_args(words)
    rows = read(ROWS)
    for name in options.only or ():
        if name not in rows:
            parser.error(f"{name} is not one of {', '.join(rows)}")
    if options.list:
        print("\n".join(f"{name:24} {row.about}" for name, row in rows.items()))
        return 0
    return tried([rows[name] for name in options.only or rows], rows, options.dir.resolve(), PAGE, RECORD)


def tried(chosen: list[Row], rows: dict[str, Row], folder: Path, written: Path, record: Path) -> int:
    """Run the chosen rows and write the page and its record; exit code 1 where one did not end as it should."""
    machine = hardware.describe()
    wrong = 0
    for row in chosen:
        print(f"{row.name}: {row.about}", flush=True)
        try:
            result = running.row(row, folder)
        except Unavailable as reason:
            result = {"failed": str(reason)}
        result |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": page.in_words(machine)}
        print("\n".join(f"    {line}" for line in page.summary(row, result)), flush=True)
        wrong += not page.good(row, result)
        page.keep(row, result, rows, record, written)
    print(f"written: {written}")
    return 1 if wrong else 0
