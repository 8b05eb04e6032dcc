"""`python3 -m tests.testbed up | down | status [--json] | env`"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time

from tests.testbed import bed, facts, parts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="install, make and start whatever is missing")
    verbs.add_parser("down", help="end every server; what was made stays")
    status = verbs.add_parser("status", help="what runs, and where")
    status.add_argument("--json", action="store_true", help="everything that tests need, for programs")
    verbs.add_parser("env", help='for a shell: eval "$(python3 -m tests.testbed env)"')
    arguments = parser.parse_args()
    here = bed.find()
    if arguments.verb in ("up", "down") and os.geteuid() != 0:
        print("the testbed starts daemons and installs packages: run this as root", file=sys.stderr)
        return 2
    try:
        if arguments.verb == "up":
            began = time.monotonic()
            parts.up(here, say)
            say(f"the testbed is up, in {time.monotonic() - began:.1f} s: {here.folder}")
        elif arguments.verb == "down":
            parts.down(here, say)
        else:
            return show(here, arguments)
    except bed.TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def show(here: bed.Bed, arguments: argparse.Namespace) -> int:
    """Print the state; 1 where something is not up."""
    state = facts.gather(here)
    if state is None:
        print(f"no testbed in {here.folder}: run `make testbed`", file=sys.stderr)
        return 1
    if arguments.verb == "env":
        for name, value in state.environment.items():
            print(f"export {name}={shlex.quote(value)}")
    elif arguments.json:
        print(json.dumps(state.plain(), indent=1))
    else:
        for name, pid in state.servers.items():
            print(f"{name:14} {'pid ' + str(pid) if pid else 'not running'}")
    return 0 if state.up else 1


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece: several threads say things
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
