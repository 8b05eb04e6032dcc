"""The whole of it, with nothing stood in for: a real trainer over a real sshd, in containers too."""

from __future__ import annotations

import json

import pytest

from launcher.runs import selection, store

JOB = ("amp=o2", "data=digits", "batch=64", "steps=12", "env.OMP_NUM_THREADS=1")


def test_a_training_run_over_ssh_is_proved_and_fetched(far, testbed, tmp_path):
    (run,) = far.submit(*JOB, f"python={testbed.python}")
    assert far.type("watch", run).code == 0
    said = far.type("fetch", run, f"to={tmp_path}")
    assert said.code == 0, said.err
    result = store.read_if_whole(tmp_path / run / "result.json")
    assert result["status"] == "done"
    assert result["observed"]["verdict"] == "proved"
    assert result["requested"]["amp"] == "o2"
    assert len((tmp_path / run / "metrics.jsonl").read_text().splitlines()) >= 12
    assert any((tmp_path / run / "checkpoints").rglob("*.pt"))


@pytest.mark.parametrize("kind", ["docker", "apptainer"])
def test_a_training_run_in_a_container_over_ssh_is_proved(far, testbed, kind):
    image = testbed.images["torch"].docker if kind == "docker" else testbed.images["torch"].sandbox
    words = [f"container={kind}", f"image={image}", "container.limits=null", "python=python3", *JOB]
    if kind == "docker":
        # Its engine's socket belongs to root on the testbed.
        words.append("cluster.host=root@box")
    said = far.type(*far.words, *words, "wait=true")
    assert said.code == 0, said.err + said.out
    (run,) = selection.run_names(str(far.root))
    shown = json.loads(far.type("ls", run, "--json").out)
    assert shown["result"]["observed"]["verdict"] == "proved"
    assert shown["plan"]["container"]["runtime"]["kind"] == kind
