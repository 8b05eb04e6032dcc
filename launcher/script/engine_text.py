"""The parts of `run.sh` for a container of Docker's or podman's. It is the engine's child and outlives its client: a
client that is killed leaves it running, with its GPUs, so the script ends it by name.
"""

from __future__ import annotations

from containers.runtime import GRACE, Wrapped
from containers.words import to_bash
from launcher.template import fill

# An attempt before can have been killed with its script. The first has nobody before it: asking the engine takes time.
REMOVE_STALE = '[ "$LAUNCHER_ATTEMPT" = 1 ] || remove_container'
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
  __OUTCOME__
  __REMOVE_LEFT__
  exit "$code"
""".strip()


def outcome(wrapped: Wrapped) -> str:
    """Where the client's exit code, in `code`, isn't to be trusted: the container's own, if there was a container.

    125 to 127 say that it could not be created or started; asked about one that never started, podman says 0.
    """
    if not wrapped.outcome:
        return ""
    ask = " ".join(map(to_bash, wrapped.outcome))
    return f"case $code in 12[567]) ;; *) outcome=$({ask} 2>/dev/null) && code=${{outcome:-$code}} ;; esac"


def remove_left(wrapped: Wrapped) -> str:
    """One whose client succeeded is gone; of any other, only the client is known to have ended."""
    return "remove_container" if wrapped.outcome else '[ "$code" = 0 ] || remove_container'


def functions(wrapped: Wrapped, *, slurm: bool) -> str:
    """The shell functions that end and remove the container."""
    lines = [f"remove_container() {{ {' '.join(map(to_bash, wrapped.remove))} >/dev/null 2>&1; }}"]
    if slurm:
        lines.append(fill(_STOP, grace=GRACE, stop=" ".join(map(to_bash, wrapped.stop))))
    return "\n".join(lines)


def on_node(command: str, wrapped: Wrapped) -> str:
    """The end of what one node of several runs, in place of `exec COMMAND`: its shell has to outlive the client."""
    return fill(_ON_NODE, command=command, outcome=outcome(wrapped), remove_left=remove_left(wrapped))
