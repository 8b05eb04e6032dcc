"""Jobs on two nodes of the real Slurm, started as a user starts them: one process on each node."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.runs import store
from tests.amp_launcher.torch.trainers import rows, steps
from tests.launcher import warm
from tests.launcher.slurm.bench import ended
from tests.launcher.slurm.submitted import Submitted, submitted_by
from tests.launcher.slurm.trainers import LONG, ask_as_before_a_time_limit, output_of, saved

DIGITS = ("nodes=2", "amp=o1", "data=digits", "batch=32")
GPT = (
    *("recipe=gpt", "nodes=2", "amp=o2", "steps=8", "batch=4", "checkpoint.every=0"),
    *("train.layers=2", "train.width=32", "train.heads=2", "train.context=32", "train.held_out=3"),
)
STEPS = 120

# A Python that starts nothing on the second node. On the first one the trainer waits a shorter time than usual.
HALF = f"""\
#!/bin/sh
[ "${{SLURMD_NODENAME-}}" != n2 ] || exit 127
[ -n "${{SLURMD_NODENAME-}}" ] || exec {sys.executable} "$@"
exec {sys.executable} -c '
import runpy, sys
from amp_launcher.world import rendezvous
rendezvous.PATIENCE = 2.0
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""


def requests(root: Path) -> Mapping[str, tuple[str, ...]]:
    (root / "python").write_text(HALF)
    (root / "python").chmod(0o700)
    return {
        "half": (f"python={root / 'python'}", *DIGITS, "steps=3"),
        **{parallel: (*GPT, f"python={warm.python()}", f"parallel={parallel}") for parallel in ("ddp", "fsdp")},
    }


submitted = submitted_by(requests)
tensorflow = submitted_by(
    lambda _: {
        "job": (
            *("framework=tensorflow", f"python={warm.python()}", *DIGITS, f"steps={STEPS}"),
            *("checkpoint.every=10", "cluster.max_requeues=0"),
        )
    }
)


def test_a_node_on_which_nothing_starts_fails_the_run_and_is_named(submitted: Submitted) -> None:
    folder = submitted.folder("half")
    assert ended(folder, LONG).name == "failed", output_of(folder)
    lines = (folder / "attempts/1/stderr.log").read_text().splitlines()
    (place,) = [number for number, line in enumerate(lines) if "worker 1 at " in line]
    assert lines[place].endswith("did not join within 2 s; 1 of 2 did")
    assert lines[place + 2].split()[:2] == ["0", "n1"]
    assert not (folder / "metrics.jsonl").exists()


@pytest.mark.slow
def test_two_workers_of_tensorflow_save_together_before_their_time_limit_and_go_on_proved(
    tensorflow: Submitted,
) -> None:
    folder = tensorflow.folder("job")
    saved(folder, 10)
    ask_as_before_a_time_limit(folder)
    assert ended(folder, LONG).name == "stopped", output_of(folder)
    tensorflow.launcher("resume", folder.name, f"run_root={folder.parent}")
    result = tensorflow.done("job")
    assert (result["attempts"], result["world_size"], result["observed"]["verdict"]) == (2, 2, "proved")
    assert result["observed"]["why"].endswith("on 2 ranks")
    stopped = store.read_or_empty(folder / "attempts/1/stopped.json")["step"]
    assert 0 < stopped < STEPS
    assert [row["resumed_from"] for row in rows(folder) if row.get("event") == "start"] == [None, stopped]
    assert [row["step"] for row in steps(folder)] == list(range(1, STEPS + 1))
    for attempt in (1, 2):
        ranks = [line.split() for line in tensorflow.output("job", attempt).splitlines()[1:3]]
        assert [line[:4] for line in ranks] == [["0", "n1", "cpu", "-"], ["1", "n2", "cpu", "-"]]


@pytest.mark.slow
def test_shards_on_two_nodes_train_as_copies_do_and_are_proved_on_both(submitted: Submitted) -> None:
    results = {parallel: submitted.done(parallel) for parallel in ("ddp", "fsdp")}
    assert {result["world_size"] for result in results.values()} == {2}
    result = results["fsdp"]
    assert (result["mechanism"], result["effective"]["parallel"]) == ("sharded_fp32_masters", "fsdp")
    observed = result["observed"]
    assert observed["verdict"] == "proved", observed["why"]
    assert set(observed["param_dtypes"]) == {"float32"}
    assert [observed[f"{what}_dtype"] for what in ("gather", "reduce", "state")] == ["bfloat16", "float32", "float32"]
    losses = [
        [*(row["loss"] for row in steps(submitted.folder(name))), results[name]["eval"]["loss"]] for name in results
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "words", "ranks", "where"),
    [
        pytest.param("fsdp", ("nodes=1",), 1, "", id="shards of two nodes on one"),
        pytest.param("ddp", ("parallel=fsdp",), 2, "bfloat16 and float32 from step 9 on", id="whole weights in shards"),
    ],
)
def test_a_run_goes_on_sharded_otherwise_and_is_proved(
    submitted: Submitted, begun: str, words: tuple[str, ...], ranks: int, where: str
) -> None:
    submitted.done(begun)
    folder = submitted.folder(begun)
    submitted.launcher("resume", folder.name, *words, "steps=12", "wait=true")
    result = submitted.done(begun)
    assert (result["world_size"], result["determinism"], result["resumed_from"]) == (ranks, "best_effort", 8)
    assert result["observed"]["verdict"] == "proved", result["observed"]["why"]
    assert where in result["observed"]["why"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 13))
