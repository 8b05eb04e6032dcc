from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import BENCHMARKS
from benchmarks.measure import Measured, Timing, by_turns, command, median_interval

HARDWARE = {"cpu": "x", "cores": 2, "memory_gib": 8, "system": "Linux", "python": "3", "load": [0.1, 0, 0]}


def measured(
    ours: tuple[float, ...] = (1.0, 2.0, 9.0), theirs: tuple[float, ...] = (2.0, 4.0, 3.0), limit: float = 1.0
) -> Measured:
    timings = {"us": Timing(seconds=ours), "them": Timing(seconds=theirs)}
    return Measured(claim="ours no slower", limit=limit, timings=timings)


def test_a_ratio_is_the_median_of_those_within_a_round() -> None:
    assert measured().ratio == 0.5
    assert measured().ratio_of_fastest == 0.5
    assert measured().holds
    assert not measured(limit=0.4).holds


@pytest.mark.parametrize(
    ("count", "bounds"),
    [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (100, (40, 61))],  # as tables of the sign test
)
def test_the_interval_of_a_median_is_between_two_of_the_values(count, bounds) -> None:
    assert median_interval(range(count, 0, -1)) == bounds


def test_an_interval_stands_in_the_reports() -> None:
    several = measured((2.0, 2.1, 2.2, 2.3, 2.4, 2.5), (2.0,) * 6)
    assert "1.000 to 1.25" in report.lines({"a": several})[1]
    assert "| 1.12 (1.000 to 1.25) |" in report.markdown([report.to_json("a", several)], HARDWARE)
    assert report.lines({"a": measured()})[1].split()[5] == "0.500", "three rounds are too few for one"


def test_cases_take_turns_and_every_other_round_goes_backwards() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return float(len(order))

    timings = by_turns({name: lambda name=name: case(name) for name in "ab"}, rounds=2)
    assert "".join(order) == "abbaab"
    assert timings["a"].seconds == (4.0, 5.0), "the first round warms up"


def test_a_command_that_fails_is_no_time(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with exit code 1: no such"):
        command(["sh", "-c", "echo no such >&2; exit 1"], tmp_path, {})()


def test_saving_again_replaces_what_was_measured_again_and_keeps_the_rest(tmp_path: Path) -> None:
    report.save(tmp_path, "today", {"a": measured(), "b": measured()}, HARDWARE)
    path = report.save(tmp_path, "today", {"a": measured((8.0, 8.0, 8.0))}, HARDWARE)
    results = json.loads(path.read_text())["results"]
    assert [(result["name"], result["holds"]) for result in results] == [("a", False), ("b", True)]
    assert "misses" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize(("value", "text"), [(1.234e-5, "12.3 us"), (0.0421, "42.1 ms"), (17.91, "17.9 s")])
def test_times_have_three_digits(value: float, text: str) -> None:
    assert report.seconds(value) == text


def test_every_benchmark_named_is_there_and_takes_its_arguments() -> None:
    for place in BENCHMARKS.values():
        module, function, *arguments = place.split(":")
        benchmark = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        inspect.signature(benchmark).bind(Path(), *arguments)
        if module == "steps" and function != "added":
            framework, recipe, _ = arguments
            loops = importlib.import_module(f"benchmarks.steps_{framework}")
            assert recipe in (loops.BY_HAND if function == "recipe" else loops.INPUTS), place
