"""A comparison on another host: it is one run there, and its arms are told of here."""

from __future__ import annotations

from launcher.ssh.archive import archive

WORDS = ["amp=o0,o1", "compare.rounds=2", "compare.steps=10", "compare.cool_down=0", "env.PAUSE=0", "wait=true"]


def test_it_runs_there_and_is_watched_and_reported_here(far):
    said = far.type("compare", *far.words, *WORDS)
    assert said.code == 0, said.err
    run = said.out.split()[0]
    assert (far.folder(run) / "blocks").read_text() == "00 0\n01 0\n01 0\n00 0\n"
    assert "COMPARISON" in said.out
    assert (far.folder(run) / "launcher.zip").read_bytes() == archive()[1], "the far side hands on what it runs itself"
    told = far.type("ls", run).out
    assert [line.split()[1:] for line in told.splitlines() if line.startswith("arm")] == [
        ["amp=o0", "done"],
        ["amp=o1", "done"],
    ]
    rows = [line for line in far.type("report", run).out.splitlines() if line.startswith("amp=")]
    assert rows and all(line.endswith("done") for line in rows if "proved" in line)
    assert (far.pointer(run) / "arms/01/metrics.jsonl").read_bytes() == (
        far.folder(run) / "arms/01/metrics.jsonl"
    ).read_bytes()
