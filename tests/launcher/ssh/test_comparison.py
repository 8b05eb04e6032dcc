"""A comparison on another host: it is one run there, and its arms are listed here."""

from __future__ import annotations

from launcher.ssh.archive import archive

WORDS = ["amp=o0,o1", "compare.rounds=2", "compare.steps=10", "compare.cool_down=0", "env.PAUSE=0", "wait=true"]


def test_a_remote_comparison_is_watched_and_reported_here(far):
    done = far.ok("compare", *far.words, *WORDS)
    run = done.out.split()[0]
    assert (far.folder(run) / "blocks").read_text() == "00 0\n01 0\n01 0\n00 0\n"
    assert "COMPARISON" in done.out
    assert (far.folder(run) / "launcher.zip").read_bytes() == archive()[1], "the far side hands on what it runs itself"
    listed = far.type("ls", run).out
    arms = [line.split()[1:] for line in listed.splitlines() if line.startswith("arm")]
    assert arms == [["amp=o0", "done"], ["amp=o1", "done"]]
    rows = [line for line in far.type("report", run).out.splitlines() if line.startswith("amp=")]
    assert rows and all(line.endswith("done") for line in rows if "proved" in line)
    here, there = (folder(run) / "arms/01/metrics.jsonl" for folder in (far.pointer, far.folder))
    assert here.read_bytes() == there.read_bytes()


TRAIN = """
import torch
assert not __import__("os").path.exists("checkpoint.pt"), "a block went on with the files of another"
torch.save({}, "checkpoint.pt")
net = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    net(torch.randn(16, 32)).pow(2).mean().backward()
    optimizer.step()
"""


def test_blocks_of_a_remote_script_start_in_an_empty_folder(far, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    done = far.ok("compare", "train.py", *far.words, *WORDS, "gpus=0", f"python={far.testbed.python}")
    run = next(line.split()[0] for line in done.out.splitlines() if "compare-train" in line)
    assert (far.folder(run) / "blocks").read_text() == "00 0\n01 0\n01 0\n00 0\n"
    assert "times over 2 rounds, too few to tell" in done.out
    assert (far.pointer(run) / "arms/01/block").read_text() == "1 2\n"
