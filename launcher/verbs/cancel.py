"""`cancel`: end runs, saved if they can be."""

from __future__ import annotations

import sys
import time

from launcher import human, queues, stopping, summary
from launcher.errors import UsageError
from launcher.verbs.arguments import Parser, all_runs, found, newest, split


def main(arguments: list[str]) -> int:
    parser = Parser(
        "cancel",
        "[--now] [RUN|SWEEP ...]",
        f"Ask runs to save and stop at their next step; what has not ended after {human.duration(stopping.STOP_GRACE)} "
        "is killed with all its processes. Without any, the newest run.",
    )
    parser.add_argument("--now", action="store_true", help="kill at once, without a checkpoint")
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    chosen = all_runs(found(names, roots)) if names else [newest(roots)]
    if not chosen:
        raise UsageError(f"cancel: no run of {' '.join(names)} is left")
    before = {each.run: each.state for each in queues.look(chosen)}
    try:
        ended = stopping.cancel(chosen, now=options.now, say=lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        print("\nthe runs stay asked to stop; `ls` says how they stand", file=sys.stderr)
        return 130
    for seen, why_not in ended:
        already = "already " if before[seen.run].finished else ""
        said = f"{already}{summary.headline(seen.state, time.time())}"
        print(f"{seen.run.id}  {said}{'; not ended: ' if why_not else ''}{why_not}")
    return 1 if any(each.why_not for each in ended) else 0
