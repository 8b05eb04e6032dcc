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
    assert (far.pointer(run) / "arms/01/block").read_text() == "1 2\n"
