"""gpt's step under parallel=fsdp on two ranks of gloo against the same step with `fully_shard` written by hand."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from amp_launcher.recipes import gpt as recipe
from amp_launcher.recipes.data import tokens
from amp_launcher.recipes.gpt.train_torch import Net, RmsNorm
from amp_launcher.torch.loop import Run
from benchmarks import steps
from benchmarks.measure import Measured, Timing, torch_processes
from benchmarks.steps import HandStep
from benchmarks.steps_gpt import ABOUT, LIMIT, adam

RANKS = 2
WORDS = ("amp.dtype=bfloat16", "parallel=fsdp")
"""Besides amp=o2."""
SIZES = ("steps=130",)


def fsdp(folder: Path) -> Measured:
    """CPU time of both ranks, since each waits for the other."""
    with torch_processes().Pool(RANKS) as pool, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = pool.starmap(_rank, [(folder, (*WORDS, *SIZES), rank, port) for rank in range(RANKS)], chunksize=1)
        pool.close()
        pool.join()  # a pool ends its processes by TERM, which a rank takes for a request to save and stop
    ours, theirs = "the recipe's step, sharded", "fully_shard by hand"
    parts = {name: [rank[name] for rank in ranks] for name in ranks[0]}
    return Measured(
        claim=f"a step of gpt at o2 under parallel=fsdp at most {LIMIT} times one with fully_shard written by hand",
        limit=LIMIT,
        timings={
            ours: _together(parts["ours"]),
            theirs: _together(parts["theirs"]),
            f"{ours}, on the clock of rank 0": Timing(seconds=parts["our clock"][0]),
            f"{theirs}, on the clock of rank 0": Timing(seconds=parts["their clock"][0]),
        },
        note=f"bfloat16, {ABOUT} over {RANKS} ranks of gloo, one thread each, CPU time of both",
    )


def _together(ranks: list[tuple[float, ...]]) -> Timing:
    return Timing(seconds=tuple(map(sum, zip(*ranks, strict=True))))


def _rank(folder: Path, words: tuple[str, ...], rank: int, port: int) -> dict[str, tuple[float, ...]]:
    """One rank's seconds a step, block by block."""
    own = folder / str(rank)
    own.mkdir()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    turns = steps.take_turns(own, steps.sized("torch", "gpt", "o2", (words, "")), by_hand)
    return {
        "ours": turns.ours.cpu.seconds,
        "theirs": turns.theirs.cpu.seconds,
        "our clock": turns.ours.clock.seconds,
        "their clock": turns.theirs.clock.seconds,
    }


def by_hand(run: Run) -> HandStep:
    """Each block sharded apart, all norms together; norms in float32, everything else gathered in half precision."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    hyper, half = run.settings.train, run.precision.dtype
    text = tokens.load(run.settings.data, hyper).train
    net = Net(hyper)
    body = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    norm = MixedPrecisionPolicy(output_dtype=half, cast_forward_inputs=False)
    norms: list[Any] = [module for module in net.modules() if isinstance(module, RmsNorm)]
    fully_shard(norms, mp_policy=norm, reshard_after_forward=False)
    for block in net.blocks:
        fully_shard(block, mp_policy=body)
    fully_shard(net, mp_policy=body)
    weights: list[Any] = list(net.parameters())
    optimizer = adam(
        [weight for weight in weights if weight.ndim > 1], [weight for weight in weights if weight.ndim == 1], hyper
    )
    rates = map(recipe.schedule(run.settings, len(text)), itertools.count())

    def step(chosen: numpy.ndarray) -> torch.Tensor:
        rate = next(rates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        samples = torch.from_numpy(text.samples(chosen))
        logits = net(samples[:, :-1]).float()
        loss = cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
        loss.backward()
        clip_grad_norm_(weights, hyper.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
