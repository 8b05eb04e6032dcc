"""Starts torchrun on one of several nodes, once all nodes are there.

    python -m amp_launcher.torch.node --workers=HOST:PORT,HOST:PORT --number=0 -m torch.distributed.run -m MODULE amp=o2

By itself torchrun waits in silence for a node that never starts. So the nodes join first, at the address that is
torchrun's afterwards. Ranks follow the node's number, so that a requeue keeps them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

from amp_launcher.world import interfaces, node, rendezvous
from amp_launcher.world.world import PlacementError, RankInfo, host_and_port, speak, visible_gpus


def join(addresses: tuple[str, ...], number: int) -> Sequence[str]:
    """Wait for the other nodes; gives torchrun's words for this one. Exits with 1 where one is missing."""
    rank = RankInfo(rank=number, host=socket.gethostname(), device="-", gpu="", visible=visible_gpus(0))
    try:
        rendezvous.join(number, addresses, (rank,), job=rendezvous.job(os.environ), patience=rendezvous.PATIENCE)
    except PlacementError as error:
        speak(str(error), number == 0 or not error.of_all)
        raise SystemExit(1) from None
    # By itself Gloo listens on what the host's own name means there, which is 127.0.1.1 on Debian.
    others = [address for index, address in enumerate(addresses) if index != number]
    if others and (interface := interfaces.toward(host_and_port(others[0])[0])):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    head, port = host_and_port(addresses[0])
    return (f"--nnodes={len(addresses)}", f"--node-rank={number}", f"--master-addr={head}", f"--master-port={port}")


def leave_term_to_workers() -> None:
    """Have torchrun outlive a TERM of the whole step, of which its workers save: it would kill them 30 s later. Older
    versions of torch don't read this variable."""
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT,SIGHUP,SIGQUIT")
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # an ignored signal would be ignored in the workers too


if __name__ == "__main__":
    leave_term_to_workers()
    node.start("amp_launcher.torch.node", sys.argv[1:], join)
