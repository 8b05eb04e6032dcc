"""Charts as inline SVG, drawn by pure functions.

A plot is stretched to the width that there is, and its words are HTML beside it: so they keep their size on a phone,
and lines keep their width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from launcher import human
from launcher.report.document import COLOURS, Bar, Bars, Curves, Line
from launcher.report.markup import Markup, join, tag

TICKS = 5
MARK, ROWS = 14, 6
"""Height of a mark, of 300, and how many rows of them are used."""
_WIDTH, _HEIGHT = 1000, 300


def bars(chart: Bars) -> Markup:
    """Lengths from zero, a label to the left and its figure to the right."""
    longest = max((each.value or 0 for each in chart.bars), default=0) or 1
    rows = join([_bar(each, longest) for each in chart.bars])
    note = tag("p", chart.note, class_="note") if chart.note else None
    return tag("figure", tag("figcaption", chart.title), tag("div", rows, class_="bars"), note)


def _bar(bar: Bar, longest: float) -> Markup:
    width = f"{100 * bar.value / longest:.2f}%" if bar.value else "0"
    drawn = tag(
        "svg", tag("rect", width=width, height="100%", class_=f"fill{bar.colour % COLOURS}"), aria_hidden="true"
    )
    return join([tag("span", bar.label, class_="label"), drawn, tag("span", bar.text, class_="figure")])


def curves(chart: Curves) -> Markup:
    """Lines over common axes, with a legend where there are several."""
    places = [x for line in chart.lines for x, _ in line.points]
    across = _Scale.over(places, whole=chart.x == "step", zero=chart.x == "seconds")
    heights = [y for line in chart.lines for _, y in line.points]
    heights += [100.0] if chart.unit == "percent" else []
    zero, sizes = chart.steps or chart.unit in ("bytes", "zero", "percent"), chart.unit == "bytes"
    up = _Scale.over(heights, log2=chart.unit == "log2", zero=zero, sizes=sizes)
    marked = [each for each in chart.lines if each.marks]
    words: Callable[[float], str] = human.size if chart.unit == "bytes" else _figure
    plot = tag(
        "svg",
        join([_rule(up.place(each)) for each in up.ticks]),
        join([_line(each, across, up, chart.steps) for each in chart.lines]),
        join([_mark(x, each.colour, row, across) for row, each in enumerate(marked) for x in each.marks]),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title}: {', '.join(each.label for each in chart.lines)}",
    )
    left = [tag("span", words(each), style=f"bottom:{100 * up.place(each):.2f}%") for each in up.ticks]
    below = [tag("span", _figure(each), style=f"left:{100 * across.place(each):.2f}%") for each in across.ticks]
    body = tag(
        "div",
        tag("div", join(left), class_="y"),
        tag("div", plot, class_="area"),
        tag("div", join(below), class_="x"),
        class_="plot",
    )
    legend = join([tag("li", tag("i", class_=_style("key", each.colour)), each.label) for each in chart.lines])
    return tag(
        "figure",
        tag("figcaption", chart.title, tag("small", f"{chart.y} by {chart.x}")),
        body,
        tag("ul", legend, class_="legend"),
        tag("p", chart.note, class_="note") if chart.note else None,
    )


def _style(name: str, colour: int) -> str:
    return f"{name} c{colour % COLOURS}{' dashed' if colour // COLOURS % 2 else ''}"


def _line(line: Line, across: _Scale, up: _Scale, steps: bool) -> Markup:
    places = [(across.place(x) * _WIDTH, (1 - up.place(y)) * _HEIGHT) for x, y in line.points]
    if steps:
        corners = [(after[0], before[1]) for before, after in itertools.pairwise(places)]
        places = [each for pair in zip(places, [*corners, places[-1]], strict=True) for each in pair]
    if len(places) == 1:
        (x, y) = places[0]
        places = [(x - 4, y), (x + 4, y)]  # one point alone would not be drawn
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in places)
    return tag("polyline", points=points, class_=_style("line", line.colour))


def _mark(x: float, colour: int, row: int, across: _Scale) -> Markup:
    """One of a line's marks, which have a row of their own above the axis, as far as there are rows."""
    place, bottom = f"{across.place(x) * _WIDTH:.4g}", _HEIGHT - MARK * (row % ROWS)
    return tag("line", x1=place, x2=place, y1=bottom - MARK + 2, y2=bottom, class_=_style("line mark", colour))


def _rule(place: float) -> Markup:
    y = f"{(1 - place) * _HEIGHT:.4g}"
    return tag("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="rule")


def _figure(value: float) -> str:
    return human.number(value, 4) if abs(value) < 1e5 else human.number(value, 2)


class _Scale:
    """From values to places between 0 and 1, with round values to mark."""

    def __init__(self, low: float, high: float, ticks: Sequence[float], log2: bool = False) -> None:
        self._log2 = log2
        self._low, self._high = self._at(low), self._at(high)
        self.ticks = [each for each in ticks if low <= each <= high]

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        *,
        log2: bool = False,
        zero: bool = False,
        whole: bool = False,
        sizes: bool = False,
    ) -> _Scale:
        low, high = min(values, default=0.0), max(values, default=1.0)
        if log2 and low > 0:
            bottom, top = math.floor(math.log2(low)), math.ceil(math.log2(high))
            bottom, top = bottom - (bottom == top), top + (bottom == top)
            every = max(1, math.ceil((top - bottom) / TICKS))
            return cls(2.0**bottom, 2.0**top, [2.0**each for each in range(bottom, top + 1, every)], log2=True)
        low = min(low, 0.0) if zero else low
        unit = 1024.0 ** max(0, math.floor(math.log(high, 1024))) if sizes and high > 1 else 1.0
        if low == high:
            low, high = (low - 1, high + 1) if low == 0 else (low - abs(low) / 10, high + abs(high) / 10)
        ticks = [unit * each for each in round_ticks(low / unit, high / unit)]
        if whole:
            ticks = [each for each in ticks if each == int(each)]
        return cls(low, high, ticks) if whole else cls(min(low, ticks[0]), max(high, ticks[-1]), ticks)

    def place(self, value: float) -> float:
        return (self._at(value) - self._low) / (self._high - self._low)

    def _at(self, value: float) -> float:
        return math.log2(value) if self._log2 else value


def round_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """About `count` values in steps of 1, 2 or 5 times a power of ten, inside the range; two at least, low < high."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    found = [step * each for each in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return found if len(found) > 1 else [low, high]
