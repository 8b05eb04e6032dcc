"""Words of a search: what is searched, the words of a trial, and what is refused with nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.config import request
from launcher.errors import UsageError
from launcher.runs import selection
from launcher.search import space
from launcher.search.job import SearchJob
from launcher.search.space import Interval

BASE = ("search=optuna", "search.metric=accuracy", "recipe=mnist")


def split(*words: str) -> tuple[space.Search, space.Space]:
    return space.split(request.split_flags([*BASE, *words], starts=True))


def typed(*words: str) -> space.Space:
    asked = request.split_flags([*BASE, *words], starts=True)
    how, searched = space.split(asked)
    return space.ends(searched, asked, how)[0]


def test_an_interval_is_spaced_by_its_ratio_or_as_said() -> None:
    _, found = split(
        "train.lr=interval(1e-4,1)", "train.momentum=interval(0.5,0.9)", "epochs=log(1,8)", "batch=linear(1,900)"
    )
    assert {key: interval.log for key, interval in found.intervals.items()} == {
        "train.lr": True,
        "train.momentum": False,
        "epochs": True,
        "batch": False,
    }


def test_a_key_of_whole_numbers_has_whole_values() -> None:
    found = typed("train.lr=interval(1e-4,1)", "batch=interval(16,64)", "amp=o0,o1")
    assert not found.intervals["train.lr"].whole and found.intervals["batch"].whole
    assert found.choices == {"amp": ("o0", "o1")}
    words = found.with_values({"batch": found.intervals["batch"].text(31.7), "amp": "o1", "train.lr": "0.5"})
    assert words == ("recipe=mnist", "train.lr=0.5", "batch=32", "amp=o1")


def test_an_argument_is_whole_where_both_ends_are() -> None:
    words = request.split_flags(
        [str(Path(__file__)), "framework=none", "amp=none", "search=optuna", "search.metric=x", "sweep.a=interval(1,8)",
         "sweep.b=interval(1,8.0)", "--", "{a}", "{b}"],
        starts=True,
    )  # fmt: skip
    how, searched = space.split(words)
    found = space.ends(searched, words, how)[0]
    assert (found.intervals["sweep.a"].whole, found.intervals["sweep.b"].whole) == (True, False)


@pytest.mark.parametrize(
    ("low", "high", "value", "text"),
    [
        ("1e-4", "1", 0.00123456789, "0.0012346"),
        ("1e-4", "1", 0.99999999, "1"),
        ("0.333333", "1", 0.3333331, "0.3333331"),  # rounded, it would be outside
        ("1000000", "1000001", 1000000.25, "1000000.25"),
    ],
)
def test_a_value_has_no_more_digits_than_say_something(low: str, high: str, value: float, text: str) -> None:
    assert Interval(low=low, high=high, log=False).text(value) == text


def test_the_words_that_repeat_a_trial_have_none_that_its_level_refuses() -> None:
    command = [*BASE, "train.lr=interval(1e-4,1)", "amp=o0,o1", "amp.dtype=bfloat16"]
    asked = request.split_flags(command, starts=True)
    how, searched = space.split(asked)
    found = SearchJob(words=asked, how=how, space=searched, command=tuple(command), specs=(), facts={}, code="")
    lr = {"train.lr": "0.5"}
    assert found.again({**lr, "amp": "o1"}) == ["recipe=mnist", "train.lr=0.5", "amp=o1", "amp.dtype=bfloat16"]
    assert found.again({**lr, "amp": "o0"}) == ["recipe=mnist", "train.lr=0.5", "amp=o0"]


def test_a_listed_text_with_commas_stays_one_value() -> None:
    _, found = split("env.A=choice(Ring,'a,\"b')", "search.trials=1")
    (key,) = found.choices
    word = found.with_values({key: 'a,"b'})[-1]
    (cell,) = request.compose(request.split_flags(["recipe=mnist", word], starts=True))
    assert cell.config["env"] == {"A": 'a,"b'}


def test_the_command_that_repeats_a_trial_has_its_values_and_no_search() -> None:
    command = [
        "t.py",
        "search=optuna",
        "search.trials=9",
        "sweep.lr=log(1,2)",
        "gpus=0",
        "--",
        "--lr",
        "{lr}",
        "search=x",
    ]
    assert space.repeated(command, {"sweep.lr": "1.5"}) == [
        "t.py", "sweep.lr=1.5", "gpus=0", "--", "--lr", "{lr}", "search=x"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search.trials=0", "train.lr=interval(1e-4,1)"], "search.trials=0 must be at least 1"),
        (["search.trials=many", "train.lr=interval(1e-4,1)"], "search.trials=many should be a whole number"),
        (["search.parallel=0", "train.lr=interval(1e-4,1)"], "search.parallel=0 must be at least 1"),
        (["search.trails=3", "train.lr=interval(1e-4,1)"], "did you mean search.trials?"),
        (["search.metric=acuracy", "train.lr=interval(1e-4,1)"], "acuracy never comes: recipe=mnist measures"),
        (["search=hyperopt", "train.lr=interval(1e-4,1)"], "search=hyperopt: optuna is what searches"),
        (["lr=interval(1e-4,1)"], "unknown key lr; did you mean train.lr?"),
        (["train.lr=interval(1,1e-4)"], "train.lr=interval(1,1e-4) is upside down; say interval(1e-4,1)"),
        (["train.lr=interval(1,1)"], "train.lr=interval(1,1) has one value; say train.lr=1"),
        (["train.lr=interval(1)"], "say interval(LOW,HIGH) in two numbers"),
        (["train.lr=interval(nan,1)"], "say interval(LOW,HIGH) in two numbers"),
        (["train.lr=log(0,1)"], "a logarithm needs a lowest value above 0"),
        (["train.lr=interval(-1,1)"], "train.lr=-1.0 must be above zero"),
        (["batch=interval(1.5,8)"], "batch=1.5 should be a whole number"),
        (["batch=interval(1,9999999)"], "batch=9999999 is more than"),
        (["name=interval(1,2)"], "name takes no number, and an interval is of numbers; list values"),
        (["xla=interval(0,1)"], "xla=0 should be true or false"),
        (["amp=o0,o1", "search.trials=2"], "these words have 2 cells, which a sweep runs in 2 trials"),
        (["train.lr=interval(1,2)", "--cfg", "job"], "--cfg job shows the configuration of jobs that are known"),
        (["train.lr=interval(1,2)", "experiment=twcc_resnet50"], "an experiment with arms is a comparison of these"),
        (["train.lr=0.1"], "search=optuna has nothing to search"),
        (["train.lr=interval(1e-4,1)", "train.lr=3"], "train.lr is given twice"),
        (["train.lr=interval(1e-4,1)", "detach=true"], "detach=true: a search"),
        (["train.lr=interval(1e-4,1)", "cluster=ssh", "cluster.host=box"], "a search runs on the machine"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_one_sentence_and_leaves_nothing(
    words: list[str], message: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, *words, f"run_root={root}"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_other_verbs_name_the_one_that_searches(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, *BASE, "train.lr=interval(1e-4,1)"]) == 2
    assert "an interval is searched, by `run` with search=optuna" in capsys.readouterr().err
    assert main([verb, *BASE, "train.lr=1,2"]) == 2
    assert "`run` searches, and no other verb does" in capsys.readouterr().err


def test_a_search_needs_its_metric_and_its_word() -> None:
    with pytest.raises(UsageError, match=r"search\.metric is missing: say what to search by"):
        space.split(request.split_flags(["search=optuna", "train.lr=interval(1e-4,1)"], starts=True))
    with pytest.raises(UsageError, match="say search=optuna too"):
        space.split(request.split_flags(["search.trials=3", "train.lr=interval(1e-4,1)"], starts=True))


def test_a_script_that_logs_nothing_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [__file__, "train.bare=true", "search=optuna", "search.metric=x", "sweep.lr=interval(1,2)"]
    assert main([*words, f"run_root={root}", "--", "{lr}"]) == 2
    assert "nothing reads what a bare script measures" in capsys.readouterr().err
    assert selection.run_names(str(root)) == []
