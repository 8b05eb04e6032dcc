"""optuna's study in its journal: continued after a kill at any byte."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.search import study
from launcher.search.space import Interval, Space
from launcher.search.study import JOURNAL, Study

SPACE = Space(
    words=("train.lr=interval(0,1)", "amp=o0,o1"),
    intervals={"train.lr": Interval(low="0", high="1", log=False)},
    choices={"amp": ("o0", "o1")},
)


@contextlib.contextmanager
def opened(folder: Path, *, lowest: bool = False, prune: bool = True) -> Iterator[Study]:
    with contextlib.closing(Study(folder, SPACE, lowest=lowest, prune=prune)) as made:
        yield made


def test_trials_stay_open_until_they_are_told(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        asked = [first.ask(), first.ask(), first.ask()]
        first.tell(0, 0.25)
        assert [number for number, _ in asked] == [0, 1, 2] and asked[0][1].keys() == {"train.lr", "amp"}
    with opened(tmp_path) as again:
        assert again.open_trials() == asked[1:] and again.asked == 3
        again.report(1, 1, 0.5)
        again.tell(1, 0.5)
        again.tell(2, None)
        assert again.open_trials() == [] and again.best() == (1, 0.5, asked[1][1])


@pytest.mark.filterwarnings("error")
def test_rows_that_are_read_again_say_nothing_new(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.ask()
        first.report(0, 1, 0.5)
        first.report(0, 1, 0.5)
    with opened(tmp_path) as again:
        assert [number for number, _ in again.open_trials()] == [0]
        again.report(0, 1, 0.5)  # optuna would warn
        again.report(0, 2, 0.75)
        again.tell(0, None, pruned=True)


def test_a_journal_cut_at_any_byte_is_continued(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        for number in range(3):
            first.ask()
            first.tell(number, float(number))
    whole = (tmp_path / JOURNAL).read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n")
    for cut in (last + 1, last + 10, len(whole) - 1, whole.find(b"\n", 200) + 5):
        (tmp_path / JOURNAL).write_bytes(whole[:cut])
        (tmp_path / f"{JOURNAL}.lock").symlink_to(JOURNAL)  # held by the one that was killed
        with opened(tmp_path) as again:
            before, still_open = again.asked, [number for number, _ in again.open_trials()]
            number, _ = again.ask()
            assert again.asked == before + 1 and number not in still_open
            again.tell(number, 1.0)
        with opened(tmp_path) as reread:
            assert reread.asked == before + 1


def test_one_process_has_a_search(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UsageError, match="is being searched by another process"):
        Study(tmp_path, SPACE, lowest=True, prune=True)
    with opened(tmp_path):
        pass


@pytest.mark.parametrize(("prune", "worse"), [(True, [False, True]), (False, [False, False])])
def test_a_trial_is_worse_than_the_median_but_not_at_its_beginning(
    tmp_path: Path, prune: bool, worse: list[bool]
) -> None:
    with opened(tmp_path, lowest=True, prune=prune) as made:
        for number in range(5):
            made.ask()
            for step in (1, 10, 20):
                made.report(number, step, float(number))
            made.tell(number, float(number))
        number, _ = made.ask()
        seen = []
        for step in (1, 10):
            made.report(number, step, 4.5)
            seen.append(made.is_worse(number, step))
        assert seen == worse
        made.tell(number, None, pruned=True)
        assert made.best() is not None and made.best()[:2] == (0, 0.0)  # type: ignore[index]


def test_without_optuna_a_sentence_has_the_line_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **named: object) -> object:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'amp-launcher\[search\]'"):
        study.library()
