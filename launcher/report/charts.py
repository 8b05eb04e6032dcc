"""Charts as inline SVG, drawn by pure functions.

A plot is stretched to the available width. Its labels are HTML outside of it, so that text and lines keep their size on
a phone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from launcher import units
from launcher.report.document import COLOURS, Bar, Bars, Curves, Line
from launcher.report.markup import Markup, join, tag

TICKS = 5
MARK, ROWS = 14, 6
"""Height of a mark in a plot of height 300, and the number of rows of marks."""
CUT = 2
"""How many times the longest bar an interval is drawn."""
_WIDTH, _HEIGHT = 1000, 300
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def bars(chart: Bars) -> Markup:
    """Lengths from zero, a label to the left and its figure to the right."""
    longest = max((bar.value or 0 for bar in chart.bars), default=0) or 1
    # A wide interval is cut off, so that the bars stay long enough to be compared.
    ends = [min(bar.interval[1], CUT * longest) for bar in chart.bars if bar.interval]
    end = 1.02 * max((longest, chart.mark or 0, *ends)) if ends or chart.mark else longest
    rows = join([_bar(bar, end, chart.mark) for bar in chart.bars])
    note = tag("p", chart.note, class_="note") if chart.note else None
    return tag("figure", tag("figcaption", chart.title), tag("div", rows, class_="bars"), note)


def _bar(bar: Bar, end: float, mark: float | None) -> Markup:
    def rule(one: float, other: float, y1: str, y2: str, name: str) -> Markup:
        x1, x2 = (f"{min(100.0, 100 * value / end):.2f}%" for value in (one, other))
        return tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=name)

    width = f"{100 * bar.value / end:.2f}%" if bar.value else "0"
    fill = "other" if bar.colour is None else f"fill{bar.colour % COLOURS}"
    drawn = [tag("rect", width=width, height="100%", class_=fill)]
    if mark is not None:
        drawn.append(rule(mark, mark, "-5", "21", "reference"))
    if bar.interval:
        low, high = bar.interval
        drawn.append(rule(low, high, "50%", "50%", "interval"))
        drawn += [rule(bound, bound, "20%", "80%", "interval") for bound in bar.interval if bound <= end]
    drawing = tag("svg", join(drawn), aria_hidden="true")
    return join([tag("span", bar.label, class_="label"), drawing, tag("span", bar.text, class_="figure")])


def curves(chart: Curves) -> Markup:
    """Lines over common axes, with a legend. page.js reads the values at a place from data attributes."""
    places = chart.span or [x for line in chart.lines for x, _ in line.points]
    across = _Scale.over(places, integers=chart.x == "step")
    heights = [y for line in chart.lines for _, y in line.points]
    heights += [100.0] if chart.unit == "percent" else []
    marked = [line for line in chart.lines if line.marks]
    sizes, log2 = chart.unit == "bytes", chart.unit == "log2"
    zero = chart.steps or sizes or chart.unit in ("zero", "percent") or 0 <= 2 * min(heights) < max(heights)
    below = MARK * min(len(marked), ROWS) / _HEIGHT
    up = _Scale.over(heights, log2=log2, zero=zero, sizes=sizes, below=below)
    words: Callable[[float], str] = units.size if sizes else _power if up.log2 else _figure
    legend = _legend(chart.lines)
    # Grey curves are drawn below coloured ones.
    ordered = sorted(chart.lines, key=lambda line: line.colour is not None)
    plot = tag(
        "svg",
        join([_rule(up.place(tick)) for tick in up.ticks]),
        tag("line", x1=0, x2=_WIDTH, y1=_HEIGHT, y2=_HEIGHT, class_="axis"),
        join([_line(line, across, up, chart.steps, _covered(ordered, n)) for n, line in enumerate(ordered)]),
        join([_mark(x, line.colour, row, across) for row, line in enumerate(marked) for x in line.marks]),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title}, {chart.y} by {chart.x}: {', '.join(label for _, label in legend)}",
        data_across=across.ends,
        data_up=up.ends,
        data_x=chart.x,
        data_unit="log2" if up.log2 else "bytes" if sizes else None,
        data_steps="" if chart.steps else None,
    )
    left = [tag("span", words(tick), style=f"bottom:{100 * up.place(tick):.2f}%") for tick in up.ticks]
    under = [tag("span", _figure(tick), style=f"left:{100 * across.place(tick):.2f}%") for tick in across.ticks]
    body = tag(
        "div",
        tag("div", join(left), class_="y"),
        tag("div", plot, class_="area", tabindex=0),
        tag("div", join(under), class_="x"),
        class_="plot",
    )
    keys = [tag("li", tag("i", class_=_style("key", colour)), label) for colour, label in legend]
    return tag(
        "figure",
        tag("figcaption", chart.title, tag("small", f"{chart.y} by {chart.x}")),
        body,
        tag("ul", join(keys), class_="legend") if keys else None,
        tag("p", chart.note, class_="note") if chart.note else None,
    )


def _legend(lines: Sequence[Line]) -> list[tuple[int | None, str]]:
    """The colours of a chart and what they mean; grey is all others, and the one curve of one run needs no name."""
    legend = [(line.colour, line.label) for line in lines if line.colour is not None and line.label]
    others = sum(line.colour is None for line in lines)
    return [*legend, (None, f"{others} other{'s' * (others > 1)}")] if others else [*legend]


def _style(name: str, colour: int | None) -> str:
    if colour is None:
        return f"{name} other"
    return f"{name} c{colour % COLOURS}{' dashed' if colour // COLOURS % 2 else ''}"


def _covered(lines: Sequence[Line], number: int) -> bool:
    """Whether a curve that is drawn later has the same points."""
    return any(line.points == lines[number].points for line in lines[number + 1 :])


def _line(line: Line, across: _Scale, up: _Scale, steps: bool, covered: bool) -> Markup:
    places = [(across.place(x) * _WIDTH, (1 - up.place(y)) * _HEIGHT) for x, y in line.points]
    if steps:
        corners = [(after[0], before[1]) for before, after in itertools.pairwise(places)]
        places = [place for pair in zip(places, [*corners, places[-1]], strict=True) for place in pair]
    dot = " dot" * (len(set(places)) == 1)
    if dot:
        (x, y) = places[0]
        places = [(x - 0.1, y), (x + 0.1, y)]  # one point alone would not be drawn
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in places)
    return tag(
        "polyline",
        points=points,
        class_=f"{_style('line', line.colour)}{' wider' * covered}{dot}",
        data_name=line.label,
    )


def _mark(x: float, colour: int | None, row: int, across: _Scale) -> Markup:
    """One of a line's marks. Those of each line have a row above the axis; more than `ROWS` lines share rows."""
    place, bottom = f"{across.place(x) * _WIDTH:.4g}", _HEIGHT - MARK * (row % ROWS)
    return tag("line", x1=place, x2=place, y1=bottom - MARK + 2, y2=bottom, class_=_style("line mark", colour))


def _rule(place: float) -> Markup:
    y = f"{(1 - place) * _HEIGHT:.4g}"
    return tag("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="rule")


def _power(value: float) -> str:
    """A value as a power of two."""
    return f"2{str(round(math.log2(value))).translate(_RAISED)}"


def _figure(value: float) -> str:
    return units.number(value, 4) if abs(value) < 1e5 else units.number(value, 2)


class _Scale:
    """From values to places between 0 and 1, with round values to mark."""

    def __init__(self, low: float, high: float, ticks: Sequence[float], log2: bool = False) -> None:
        self.log2 = log2
        self._low, self._high = self._at(low), self._at(high)
        self.ticks = [tick for tick in ticks if low <= tick <= high]

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        *,
        log2: bool = False,
        zero: bool = False,
        integers: bool = False,
        sizes: bool = False,
        below: float = 0.0,
    ) -> _Scale:
        """`below` is the share of a log2 scale that is kept free at its low end."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if log2 and low > 0:
            bottom, top = math.floor(math.log2(low)), math.ceil(math.log2(high))
            bottom, top = bottom - (bottom == top), top + (bottom == top)
            every = max(1, math.ceil((top - bottom) / TICKS))
            free = (top - bottom) * below / (1 - below)
            return cls(
                2.0 ** (bottom - free), 2.0**top, [2.0**power for power in range(bottom, top + 1, every)], log2=True
            )
        low = min(low, 0.0) if zero else low
        unit = 1024.0 ** max(0, math.floor(math.log(high, 1024))) if sizes and high > 1 else 1.0
        if low == high:
            low, high = (low - 1, high + 1) if low == 0 else (low - abs(low) / 10, high + abs(high) / 10)
        ticks = [unit * tick for tick in round_ticks(low / unit, high / unit)]
        if integers:
            ticks = [tick for tick in ticks if tick == int(tick)]
        return cls(low, high, ticks) if integers else cls(min(low, ticks[0]), max(high, ticks[-1]), ticks)

    @property
    def ends(self) -> str:
        """Where it begins and ends; of a log2 scale the exponents."""
        return f"{self._low:.8g} {self._high:.8g}"

    def place(self, value: float) -> float:
        return (self._at(value) - self._low) / (self._high - self._low)

    def _at(self, value: float) -> float:
        return math.log2(value) if self.log2 else value


def round_ticks(low: float, high: float) -> list[float]:
    """About `TICKS` values in steps of 1, 2 or 5 times a power of ten, inside the range; two at least, low < high."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    ticks = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return ticks if len(ticks) > 1 else [low, high]
