"""A trainer of shards for tests: FOLDER STEPS. Prints a JSON line from rank 0; saves at every step.

FSDP=0 trains without shards. OTHER=1 trains another network. BREAK=disk:1:2,raise:0:3 has the save of step 2 fail on
rank 1 for a full disk, that of step 3 by an exception on rank 0; each rank prints what it raised, and goes on.
KILL=RANK:STEP:COUNT has that rank kill itself at so many calls into the file system from the save of that step on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import distributed, nn

from amp_launcher.loop import sampling
from amp_launcher.loop.progress import Progress
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.settings import Checkpoint, Settings
from amp_launcher.torch import devices, resharding
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.state import State
from amp_launcher.torch.trained import Trained, is_shard
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.sharded_net import FEATURES, Net

BATCH, SAMPLES = 8, 64
SHARDED = os.environ.get("FSDP", "1") == "1"


def main(folder: Path, steps: int) -> int:
    world = devices.join("cpu", None, os.environ)
    if world.size == 1 and SHARDED:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    precision = Precision(Amp(level="o0"), loss_scale=LossScale(mode="none"), device=world.device)
    net = precision.prepare(Net(7 if "OTHER" not in os.environ else 5))
    model: nn.Module = net
    if SHARDED:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(net)
    elif world.size > 1:
        model = world.wrap(net)
    optimizer = precision.prepare(torch.optim.AdamW(net.parameters(), lr=0.01))
    settings = Settings(batch=BATCH, steps=steps, checkpoint=Checkpoint(keep=2))
    trained = Trained(model=net, optimizers=[optimizer], precision=precision)
    state = State(trained=trained, settings=settings, world=world)
    data = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
    try:
        resumed = state.resume(folder)
    except SettingsError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    progress = resumed[0] if resumed else Progress()
    losses = []
    for step in range(progress.step, steps):
        epoch, within = divmod(step, SAMPLES // BATCH)
        share = sampling.share(sampling.order(0, epoch, SAMPLES), BATCH, 1, world.rank, world.size)[within]
        batch = data[torch.from_numpy(share[0].copy())]
        optimizer.zero_grad()
        net.eval()  # statistics of the batch are each rank's own
        with precision:
            loss = (model(batch) - batch).square().mean()
        precision.backward(loss)
        precision.step(optimizer)
        losses.append(world.sum([loss.item() / world.size])[0])
        with broken(world.rank, step + 1):
            state.save(folder, Progress(step=step + 1, exact=progress.exact))
    state = net.state_dict().items()
    weights = {name: (value.full_tensor() if is_shard(value) else value).tolist() for name, value in state}
    if world.rank == 0:
        began = {"from": progress.step, "exact": progress.exact}
        print(json.dumps({**began, "losses": losses, "weights": weights}), flush=True)
    world.leave()
    return 0


@contextlib.contextmanager
def broken(rank: int, step: int) -> Iterator[None]:
    """Around the save of a step: it fails where the environment says."""
    killed, begin, calls = map(int, os.environ.get("KILL", "-1:0:0").split(":"))
    if (killed, begin) == (rank, step):
        sys.addaudithook(dying(calls))
    breaks = [word.split(":") for word in os.environ.get("BREAK", "").split(",") if word]
    how = next((how for how, of, at in breaks if (of, at) == (str(rank), str(step))), "")
    if not any(at == str(step) for _, _, at in breaks):
        yield
        return
    real, limits = resharding.split, resource.getrlimit(resource.RLIMIT_FSIZE)
    if how == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    elif how == "raise":
        resharding.split = lambda _: 1 // 0
    try:
        yield
        print(f"step {step} was saved", flush=True)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        print(f"step {step} on rank {rank}: {type(error).__name__}: {error}", flush=True)
    resharding.split = real


def dying(calls: int) -> Callable[[str, object], None]:
    """An audit hook."""
    left = itertools.count(calls, -1)

    def hook(event: str, _: object) -> None:
        if event.startswith(("open", "os.", "shutil.")) and next(left) <= 0:
            signal.raise_signal(signal.SIGKILL)  # os.kill would come here again

    return hook


code = main(Path(sys.argv[1]), int(sys.argv[2]))
sys.stdout.flush()
os._exit(code)
