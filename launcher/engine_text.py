"""The parts of `run.sh` for a container of Docker's or podman's. It is the engine's child and outlives its client: a
client that is killed leaves it running, with its GPUs, so the script ends it by name.
"""

from __future__ import annotations

from containers.runtime import GRACE, Wrapped
from containers.words import to_bash

# An attempt before can have been killed with its script. The first has nobody before it: asking the engine takes time.
REMOVE_STALE = '[ "$LAUNCHER_ATTEMPT" = 1 ] || remove_container'
# One whose command succeeded is gone; of any other, only its client is known to have ended.
REMOVE_LEFT = '[ "$code" = 0 ] || remove_container'
# In a trap, where everything of this script has been told to end already.
STOP = "; stop_container &"

_STOP = r"""
# Slurm kills what is left KillWait seconds after its TERM, but not the container: so that ends before.
stop_container() {
  wait=$(scontrol show config | sed -n 's/^KillWait *= *\([0-9]*\).*/\1/p')
  __GRACE__=$((${wait:-30} / 2))
  __STOP__
} >/dev/null 2>&1
""".strip()

_ON_NODE = r"""
  trap 'trap "" TERM INT HUP; stop_container &' TERM INT HUP
  __COMMAND__ &
  child=$!
  code=137
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
  done
  __REMOVE_LEFT__
  exit "$code"
""".strip()


def functions(wrapped: Wrapped, *, slurm: bool) -> str:
    """The shell functions that end and remove the container."""
    lines = [f"remove_container() {{ {' '.join(map(to_bash, wrapped.remove))} >/dev/null 2>&1; }}"]
    if slurm:
        stop = " ".join(map(to_bash, wrapped.stop))
        lines.append(_STOP.replace("__GRACE__", GRACE).replace("__STOP__", stop))
    return "\n".join(lines)


def on_node(command: str) -> str:
    """The end of what one node of several runs, in place of `exec COMMAND`: its shell has to outlive the client."""
    return _ON_NODE.replace("__COMMAND__", command).replace("__REMOVE_LEFT__", REMOVE_LEFT)
