"""A chain's file: which jobs it has, in which order, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import chain
from launcher.errors import UsageError

NIGHTLY = """\
evaluate:
  needs: [train, any:prepare]
  words: evaluate.py amp=none
train:
  words: [train.py, amp=o2, --, --lr, 0.10, "a b"]
  needs: prepare
prepare:
  words: >
    cmd gpus=0
    -- ./prepare.sh 'raw data'
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.yaml"


def test_each_job_stands_behind_those_that_it_needs_with_its_words_as_written(file: Path) -> None:
    file.write_text(NIGHTLY)
    prepare, train, evaluate = chain.read(file)
    assert prepare[:3] == ("prepare", ("cmd", "gpus=0", "--", "./prepare.sh", "raw data"), ())
    assert train[:3] == ("train", ("train.py", "amp=o2", "--", "--lr", "0.10", "a b"), ("prepare",))
    assert evaluate[:3] == ("evaluate", ("evaluate.py", "amp=none"), ("train", "any:prepare"))
    assert evaluate.place == f"{file}:3"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": a chain's file names jobs"),
        ("- a", ":1: a configuration file holds keys"),
        ("a: x.py", ":1: a should be a mapping"),
        ("a:\n  word: x.py", ":2: word is no key of a job; did you mean words?"),
        ("a:\n  needs: b\nb: {words: x.py}", ":2: a has no words"),
        ("a:\n  words: {b: c}", ":2: a.words should be a text or a list of texts"),
        ("a:\n  words:\n  - x.py\n  - [b]", ":4: a.words should be a text or a list of texts"),
        ("a:\n  words: x.py 'b", ":2: the words of a can't be split as a shell does"),
        ("9a: {words: x.py}", ":1: 9a is no name for a job"),
        ("a: {words: x.py}\na: {words: y.py}", ":2: can't be read as YAML: .* duplicate key a"),
        ("a: {words: x.py}\nb:\n  words: x.py\n  needs: aa", ":4: b needs aa, which is no job here; did you mean a?"),
        ("a: {words: x.py}\nb:\n  words: x.py\n  needs:\n  - a\n  - zz", r":6: b needs zz, .*here \(jobs: a, b\)"),
        ("a:\n  words: x.py\n  needs: any:a", ":3: the jobs need each other: a needs a"),
        (
            "z: {words: x.py, needs: a}\na:\n  words: x.py\n  needs: b\nb:\n  words: x.py\n  needs:\n  - z0\n  - a\n"
            "z0: {words: x.py}",
            ":9: the jobs need each other: a needs b needs a",
        ),
    ],
)
def test_a_file_that_is_no_chain_is_refused_with_its_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=f"{file}{says}"):
        chain.read(file)
