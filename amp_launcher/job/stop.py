"""`should_stop` and `checkpoint_dir` of `amp_launcher.job`: when a script has to end, and where it saves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from amp_launcher.job.function import run_folder
from amp_launcher.world import preemption
from amp_launcher.world.preemption import SECONDS, StopPoller

T = TypeVar("T")


@dataclass(slots=True)
class StopRequests:
    """The state of `should_stop` in this process."""

    called: bool = False
    """Whether it was called: such a script ends by itself."""
    answered_true: bool = False
    """Whether it has returned True."""
    checked_at: float = float("-inf")
    """When this process last looked for the STOP file, on the monotonic clock."""
    ranks: _TorchRanks | None = None
    poller: StopPoller | None = None
    calls: int = 0
    """Calls since the ranks began to poll together."""
    tell: Callable[[], object] = lambda: None
    """Called at the first call, and when the answer is True: to the process that started this rank."""


requests = StopRequests()


def should_stop() -> bool:
    """Whether to save and end now: the run was asked to stop, it is being preempted, or its time limit is near.

    Call it once per step; it looks for the request about once a second. Once it has returned True, it always does.
    From the first call on TERM is such a request and does not end the process, unless the script has a handler of its
    own, which stays. The time left is the plan's `cluster.stop_before`, or Slurm's grace time of a preemption.
    With torch.distributed and several ranks it is a collective: all ranks have to call it equally often, and get the
    answer of rank 0 at the same call. Without torch.distributed each process looks by itself, up to a second apart.
    False without a launcher.
    """
    return asked(catch_term=True)


def asked(*, catch_term: bool) -> bool:
    """The answer of `should_stop`, which catches TERM from its first call on."""
    state = requests
    before = state.called, state.answered_true
    state.called = True
    if not state.answered_true:
        state.answered_true = _poll(state, catch_term)
    if before != (True, state.answered_true):
        state.tell()
    return state.answered_true


def checkpoint_dir() -> Path:
    """The folder for checkpoints, absolute: the same in all attempts of a run. Without a launcher, ./checkpoints."""
    folder = Path(os.environ.get("LAUNCHER_CHECKPOINT_DIR") or "checkpoints").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _poll(state: StopRequests, catch_term: bool) -> bool:
    if "LAUNCHER_SPEC" not in os.environ:
        return False
    if catch_term:
        preemption.catch_term()
    world = _torch_world()
    if world is None:
        if preemption.term_received():
            return True
        now = time.monotonic()
        if now - state.checked_at < SECONDS:
            return False
        state.checked_at = now
        return _stop_file().exists()
    if state.poller is None or state.ranks is None or state.ranks.world is not world:
        state.ranks = _TorchRanks(world)
        state.poller, state.calls = StopPoller(state.ranks, _stop_file()), 0
    state.calls += 1
    return state.poller.due(state.calls) and state.poller.poll(state.calls)


def _stop_file() -> Path:
    return Path(run_folder(os.environ["LAUNCHER_SPEC"]), "STOP")


def _torch_world() -> Any:
    """torch's default process group of several ranks; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.group.WORLD if distributed.get_world_size() > 1 else None


class _TorchRanks:
    """The ranks of torch's default process group. They communicate over gloo, on the CPU: NCCL would need to know each
    rank's device, and would wait for its kernels."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self._distributed: Any = sys.modules["torch.distributed"]
        self.rank: int = self._distributed.get_rank()
        own = self._distributed.get_backend() != "gloo" and self._distributed.is_gloo_available()
        self._group = self._distributed.new_group(backend="gloo") if own else None

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        holder = [value]
        self._distributed.broadcast_object_list(holder, src=0, group=self._group)
        return holder[0]
