"""`fetch`: bring what runs on other hosts left: results, metrics, logs, checkpoints."""

from __future__ import annotations

import sys

from launcher import units, waiting
from launcher.commands.arguments import Parser, chosen, newest, split
from launcher.config.paths import expanded
from launcher.errors import UsageError
from launcher.runs import run_roots


def main(arguments: list[str]) -> int:
    parser = Parser(
        "fetch",
        "[RUN|SWEEP ...] [to=FOLDER]",
        "Fetch all files of runs on other hosts, into FOLDER/RUN or into their folders here. Files that are here "
        "already are skipped, and an interrupted fetch continues where it was.",
    )
    names, roots, values = split(parser.parse_intermixed_args(arguments).words, ("to",))
    here, roots = roots, [root for root in roots if run_roots.is_remote(root)]
    if not roots:
        if names:
            chosen(names, here)  # which refuses an unknown name
        raise UsageError("fetch: no run of yours is on another host; those of this machine are here already")
    from launcher.ssh import fetching

    for run in chosen(names, roots) if names else [newest(roots)]:
        folder = expanded(values["to"]).absolute() / run.id if "to" in values else run.folder
        fetched = fetching.fetch(run, folder, say=waiting.say)
        print(f"{run.id}  {fetched.files} files, {units.size(fetched.bytes)} fetched to {folder}")
        for name in fetched.gone:
            print(f"{run.id}  {name} was deleted there meanwhile", file=sys.stderr)
    return 0
