"""Starts the tasks of a function on this node, a process each: `python job/tasks.py --per-node=2 WORD ...`.

Each is `python WORD ...` with its number in LAUNCHER_TASK, how many there are in LAUNCHER_TASKS, and the variables by
which submitit's `JobEnvironment` knows a task. On Slurm, which starts this once on each node (`--nodes=2 --node=0`),
these are srun's. As under submitit nothing sets torchrun's: the function does. Numbers follow the node's.

It ends with the exit code of the first task that fails, which ends the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

GRACE = 30
"""Seconds that tasks have to end by themselves when one has failed."""
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


def variables(local: int, per_node: int, node: int | None, nodes: int) -> dict[str, str]:
    """What task `local` of node number `node` finds set; `node` is None where Slurm doesn't start this."""
    task, tasks = str((node or 0) * per_node + local), str(nodes * per_node)
    values = {
        "LAUNCHER_TASK": task,
        "LAUNCHER_TASKS": tasks,
        "SUBMITIT_LOCAL_GLOBALID": task,
        "SUBMITIT_LOCAL_NTASKS": tasks,
        "SUBMITIT_LOCAL_LOCALID": str(local),
        "SUBMITIT_LOCAL_NODEID": str(node or 0),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": str(nodes),
    }
    if node is not None:
        each = f"{per_node}(x{nodes})" if nodes > 1 else str(per_node)
        values |= {"SLURM_PROCID": task, "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        values |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks)
        values |= dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), each)
        values["SLURM_NTASKS_PER_NODE"] = str(per_node)
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):  # those of this node
            values["SLURM_CPUS_PER_TASK"] = str(max(1, int(cpus) // per_node))
    return values


def run(argv: Sequence[str], environments: Sequence[Mapping[str, str]], pass_on: bool) -> int:
    """A process for each environment, with these words; signals are passed on to them, or not where they reach all by
    themselves. Returns 0, or the exit code of the first that failed."""
    running: dict[int, subprocess.Popen[bytes]] = {}

    def signal_all(number: int, frame: object = None) -> None:
        for pid in running:  # by `Popen.send_signal` those that have ended would be waited for
            os.kill(pid, number)

    for name in _PASSED_ON:
        signal.signal(getattr(signal, name), signal_all if pass_on else lambda number, frame: None)
    signal.signal(signal.SIGALRM, lambda number, frame: signal_all(signal.SIGKILL))
    for environment in environments:
        task = subprocess.Popen(argv, env=environment)
        running[task.pid] = task
    failed = 0
    while running:
        pid, status = os.wait()
        if running.pop(pid, None) is None:
            continue  # an orphan, where this is a container's first process
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code if code > 0 else 128 - code
            signal_all(signal.SIGTERM)
            signal.alarm(GRACE)
    return failed


def main(words: Sequence[str]) -> int:
    options = {"per-node": 1, "nodes": 1}
    while words[0].startswith("--"):
        name, _, value = words[0][2:].partition("=")
        options[name] = int(value)
        words = words[1:]
    per_node, nodes, node = options["per-node"], options["nodes"], options.get("node")
    own = [variables(local, per_node, node, nodes) for local in range(per_node)]
    # Slurm signals every process of a step; on one node the run's script signals this one alone.
    return run([sys.executable, *words], [{**os.environ, **each} for each in own], pass_on=nodes == 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
