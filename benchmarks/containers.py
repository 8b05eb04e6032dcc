"""What run.sh adds to the start of a container, against the same command typed by hand, on the testbed's runtimes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Measured, by_turns
from benchmarks.places import testbed
from launcher.code.job_files import code_files
from launcher.config import request
from launcher.executors import execute
from launcher.plan import container
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.script import trainer_command
from launcher.ssh.probe_client import probe
from tests.containers.readers import fill

ROUNDS = 30
# The container's first instruction prints the time: the clock is the host's.
PROGRAM = "#!/bin/sh\nexec date +%s.%N\n"


def start(folder: Path, kind: str) -> Measured:
    known = testbed("dockerd")
    # Where root may not raise its capabilities, Apptainer works in a user namespace, as it does for anyone else.
    os.environ.update({**known["environment"], "APPTAINER_USERNS": "1", "XDG_STATE_HOME": str(folder / "state")})
    program = folder / "program"
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    plan = _plan(folder, program, kind, known["images"]["python"]["docker" if kind == "docker" else "sif"])
    cases = {
        f"run.sh with container={kind}": lambda: _by_script(plan),
        f"the same {kind} command by itself": lambda: _by_hand(plan),
    }
    return Measured(
        claim=f"from start to the container's first instruction at most 1.1 times the same typed by hand, {kind}",
        limit=1.1,
        timings=by_turns(cases, ROUNDS),
        note="the first attempt of a run; run.sh is counted from its own start",
    )


def _plan(folder: Path, program: Path, kind: str, image: str) -> Plan:
    words = [f"container={kind}", f"image={image}", "container.limits=null", f"python={program}"]
    words += [f"mounts=[{program}:{program}:ro]", f"run_root={folder / 'runs'}"]
    (spec,) = request.to_specs(request.compose(request.split_flags(words)))
    return resolve(spec, probe([spec]))


def _by_script(plan: Plan) -> float:
    folder = execute.prepare(plan, code_files())
    log = folder / "attempts" / "1" / "stdout.log"
    return _first_instruction(["bash", str(folder / "run.sh")], execute.environment(), log)


def _by_hand(plan: Plan) -> float:
    folder = execute.prepare(plan, code_files())
    bound = plan.bind(folder.name)
    wrapped = container.wrapped(bound, trainer_command.command(bound))
    late = {container.ATTEMPT: "1"}
    values = fill(wrapped.environment.values(), late)
    environment = {**execute.environment(), **late, **dict(zip(wrapped.environment, values, strict=True))}
    return _first_instruction(fill(wrapped.argv, late), environment, log=folder)


def _first_instruction(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> float:
    """Seconds from the start of a command to the time that its program prints, to standard output or to `log`."""
    began = time.time()
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
    )
    printed = done.stdout or (log.read_text(encoding="utf-8") if log.is_file() else "")
    if not printed:  # run.sh ends with exit code 1 in any case: the program leaves no result
        raise RuntimeError(f"{argv[0]} ended with exit code {done.returncode}: {done.stderr}")
    return float(printed) - began
