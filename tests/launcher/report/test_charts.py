"""The charts of a report: their curves, colours and scales, and of many runs which are drawn."""

import dataclasses
import json
import re

import pytest

from launcher.report import charts, chosen, page, read, sections
from launcher.report.document import Curves, Line
from launcher.runs.schema import Losses, ResultRecord
from launcher.runs.store import Run

from . import folders
from .folders import OTTER, OWL, document


def chart(document, title):
    (part,) = [part for section in document.sections for part in section.parts if getattr(part, "title", "") == title]
    return part


def sampled(root, name, kind, lines):
    """A run without times of its steps, with these lines of telemetry."""
    folder = folders.run(root, name)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**row, "time": None}) + "\n" for row in rows))
    (folder / "telemetry").mkdir()
    (folder / f"telemetry/1-0.{kind}.csv").write_text("".join(f"{line}\n" for line in lines))
    return folder


GPUS = [
    "timestamp, index, uuid, memory.used [MiB], utilization.gpu [%]",
    *(f"2026/11/21 00:00:{s}.000, {gpu}, GPU-{gpu}, 3000, 9{gpu}" for s in (10, 20) for gpu in (0, 1)),
]


def test_samples_of_a_host_become_curves_of_its_run(root):
    counters = ["100, 10, 100, 1024, 4096", "101, 60, 200, 2048, 4096", "102, 90, 300, 1024, 4096"]
    report = document(sampled(root, OTTER, "host", ["time [s], ...", *counters]))
    (line,) = chart(report, "Processors of the host").lines
    assert line.points == ((1.0, 50.0), (2.0, 30.0))
    assert chart(report, "Memory of the host").lines[0].points[0] == (0.0, 3 * 2**20)


def test_devices_of_one_run_differ_by_colour_and_of_several_by_dashes(root):
    one, other = (sampled(root, name, "gpu", GPUS) for name in (OTTER, OWL))

    def styles(*runs):
        return [(line.label.split()[-1], line.colour) for line in chart(document(*runs), "GPU utilisation").lines]

    assert styles(one) == [("0", 0), ("1", 1)]
    assert styles(one, other) == [("0", 0), ("1", 8), ("0", 1), ("1", 9)]


def test_shares_are_drawn_up_to_100_percent(root):
    report = document(sampled(root, OTTER, "gpu", GPUS))
    labels = re.findall(r"bottom:([\d.]+)%\">(\d+)<", charts.curves(chart(report, "GPU utilisation")))
    assert labels[-1] == ("100.00", "100")


def test_curves_of_one_run_are_by_time_and_of_several_by_step_each_kind_on_one_axis(root):
    one, other = folders.run(root, OTTER, steps=30, scale=8.0), folders.run(root, OWL, steps=40, scale=8.0)
    for folder in (one, other):
        (folder / "telemetry").mkdir()
        text = "".join(f"{line}\n" for line in ("11, 10, 100, 1024, 4096", "21, 60, 200, 2048, 4096"))
        (folder / "telemetry/1-0.host.csv").write_text(text)

    def axes(*runs):
        (section,) = [section for section in document(*runs).sections if section.title == "Charts"]
        return {(part.x, part.span) for part in section.parts}, section.parts

    alone, parts = axes(one)
    assert alone == {("seconds", (0.0, 29.0))}
    assert [part.title for part in parts[:4]] == ["Loss", "Throughput", "Loss scale", "Memory"]
    assert parts[2].lines[0].marks == (9.0, 19.0, 29.0), "the steps 10, 20, 30"
    assert [line.label for part in parts for line in part.lines if line.label] == ["(3 skipped)"]
    assert chart(document(one), "Memory of the host").lines[0].points[0][0] == 10.0
    assert axes(folders.run(root, folders.SWEEP, steps=301))[0] == {("minutes", (0.0, 5.0))}
    both, _ = axes(one, other)
    assert both == {("step", (1, 40)), ("seconds", (0.0, 20.0))}


def test_steps_that_two_runs_skipped_are_marked_in_two_rows():
    lines = [Line(label=name, colour=n, points=((1.0, 2.0), (9.0, 2.0)), marks=(5.0,)) for n, name in enumerate("ab")]
    shown = charts.curves(Curves(title="Loss scale", x="step", y="scale", lines=tuple(lines), steps=True, unit="log2"))
    places = re.findall(r'x1="([\d.]+)" x2="[\d.]+" y1="([\d.]+)" y2="([\d.]+)" class="line mark', shown)
    assert places == [("500", "288", "300"), ("500", "274", "286")]


@pytest.mark.parametrize(
    ("heights", "unit", "begins_at_0"),
    [
        ((1, 3), "", True),
        ((1, 2), "", False),
        ((2, 3), "", False),
        ((-1, 3), "", False),
        ((2, 3), "zero", True),
        ((2, 3), "bytes", True),
    ],
)
def test_an_axis_begins_at_0_where_the_values_come_near_it_or_are_of_such_a_unit(heights, unit, begins_at_0):
    line = Line(label="x", colour=0, points=tuple(enumerate(map(float, heights))))
    shown = charts.curves(Curves(title="Loss", x="step", y="loss", lines=(line,), unit=unit))
    assert [mark in shown for mark in ('data-up="0 ', 'bottom:0.00%">0')] == [begins_at_0] * 2


def test_a_curve_of_one_point_is_a_dot_and_two_equal_ones_are_both_seen():
    points = [((1.0, 2.0),), ((1.0, 2.0), (3.0, 4.0)), ((1.0, 2.0), (3.0, 4.0))]
    lines = tuple(Line(label="x", colour=colour, points=own) for colour, own in enumerate(points))
    shown = charts.curves(Curves(title="Loss", x="step", y="loss", lines=lines))
    assert re.findall(r'<polyline[^>]* class="([^"]*)"', shown) == ["line c0 dot", "line c1 wider", "line c2"]


def many(root, count, steps=2):
    """The evidence of a sweep of so many runs, each a little better than the one before."""
    runs = [
        folders.run(
            root,
            f"{folders.SWEEP}-{number:03}",
            planned={"swept": [["seed", number]]},
            resulting={"eval": {"accuracy": 0.5 + number / 1000}},
            steps=steps,
        )
        for number in range(count)
    ]
    return read.gather([Run(str(root), run.name) for run in runs])


def test_of_a_hundred_runs_all_steps_are_read_and_the_best_eight_stand_out(root):
    report = sections.of_runs("many", many(root, 100))
    lines = chart(report, "Loss").lines
    assert len(lines) == 100
    colours = {line.label.split()[0]: line.colour for line in lines if line.colour is not None}
    assert colours == {f"{92 + number:03}": number for number in range(8)}
    assert report.lead == ("100 runs. In the charts the 8 with the best held-out accuracy have colours.",)
    assert len(page.render(report).encode()) < 2_000_000
    throughput = chart(report, "Throughput")
    assert (len(throughput.bars), throughput.note) == (24, "the 24 highest of 100")


def test_of_more_runs_than_are_read_the_best_are(root, monkeypatch):
    monkeypatch.setattr(chosen, "READ", 20)
    report = sections.of_runs("many", many(root, 30))
    assert sorted(line.label.split()[0] for line in chart(report, "Loss").lines) == [f"{n:03}" for n in range(10, 30)]
    assert len(report.sections[0].parts[0].rows) == 30
    assert report.lead[0].startswith("30 runs. The steps of 20 of them were read.")


def test_long_runs_are_read_up_to_a_number_of_bytes(root, monkeypatch):
    monkeypatch.setattr(chosen, "BYTES", 10_000)
    monkeypatch.setattr(chosen, "ALWAYS", 3)
    assert [run.metrics is not None for run in many(root, 6, steps=40)] == [False, False, False, True, True, True]


def test_runs_without_an_accuracy_are_ordered_by_loss_and_those_without_either_come_last():
    results = [ResultRecord(loss=Losses(last=loss)) for loss in (2.0, None, 1.0, None)]
    assert chosen.best_first(results) == ([2, 0, 1, 3], "last loss")


def test_where_no_run_has_an_accuracy_or_a_loss_the_lead_calls_none_the_best(root):
    runs = [dataclasses.replace(run, result=ResultRecord()) for run in many(root, 20)]
    assert sections.of_runs("many", runs).lead == ("20 runs. In the charts the first 8 have colours.",)
