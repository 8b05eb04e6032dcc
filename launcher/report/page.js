"use strict";

// A press on a column's name sorts by it, a second one the other way round; what has no value stays last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const column = heading.cellIndex;
    const isNumber = heading.classList.contains("number");
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const sibling of heading.parentElement.children) sibling.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const body = heading.closest("table").tBodies[0];
    const valueOf = (row) => row.cells[column].dataset.value;
    const order = (a, b) => (isNumber ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true }));
    const rows = Array.from(body.rows).sort((one, other) => {
      const a = valueOf(one), b = valueOf(other);
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return direction * order(a, b);
    });
    body.append(...rows);
  });
}

// What the curves of a chart are where it is pointed at, by pointer, finger, or the arrow keys. Charts over the same
// quantity are pointed at together, and zoomed together by a drag across one of them.
const MOST = 8;
const WIDTH = 1000, HEIGHT = 300; // of a plot, as charts.py draws it
const NEAR = 25; // how far from its end a curve is still read out
const DRAG = 8; // pixels that make a drag
const short = (value) => String(Number(value.toPrecision(3)));
const clamp = (value) => Math.min(WIDTH, Math.max(0, value));
const make = (parent, name, className) => parent.appendChild(Object.assign(document.createElement(name), { className }));
const roundTicks = (low, high) => {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, number) => Number(((first + number) * step).toPrecision(12)));
};

class Chart {
  constructor(area) {
    this.area = area;
    this.plot = area.querySelector("svg");
    [this.left, this.right] = this.plot.dataset.across.split(" ").map(Number);
    [this.bottom, this.top] = this.plot.dataset.up.split(" ").map(Number);
    const { x, unit, steps } = this.plot.dataset;
    Object.assign(this, { unit: x, kind: unit, steps: steps !== undefined, from: 0, to: WIDTH, high: 0, low: HEIGHT });
    [this.y, this.x] = [area.previousElementSibling, area.nextElementSibling];
    this.labels = [this.y, this.x].map((axis) => Array.from(axis.children));
    this.rules = Array.from(this.plot.querySelectorAll(".rule"));
    this.cursor = make(area, "div", "cursor");
    this.brush = make(area, "div", "brush");
    this.tooltip = make(area, "div", "tooltip");
    this.tooltip.setAttribute("role", "status");
    this.hide();
    this.brush.hidden = true;
  }
  get lines() {
    return (this.read ??= Array.from(this.plot.querySelectorAll("polyline"), (item) => ({
      name: item.dataset.name,
      style: item.getAttribute("class").replace("line", "key"),
      points: item.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
    })));
  }
  valueAt(y) {
    const value = this.bottom + (1 - y / HEIGHT) * (this.top - this.bottom);
    if (this.kind === "log2") return short(2 ** value);
    if (this.kind !== "bytes") return short(value);
    const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
    return `${short(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }
  across(place) { return this.left + (place / WIDTH) * (this.right - this.left); }
  share(place) { return `${(100 * (place - this.from)) / (this.to - this.from)}%`; }
  pointOf(points, place) {
    const near = (NEAR * (this.to - this.from)) / WIDTH;
    if (place < points[0][0] - near || place > points[points.length - 1][0] + near) return null;
    const after = points.findIndex((item) => item[0] > place);
    const next = after < 0 ? points.length - 1 : after, before = Math.max(0, after < 0 ? next : after - 1);
    if (this.steps) return points[before];
    return place - points[before][0] < points[next][0] - place ? points[before] : points[next];
  }
  hide() { this.cursor.hidden = this.tooltip.hidden = true; }
  show(place, height) {
    let shown = this.lines.map((item) => ({ ...item, point: this.pointOf(item.points, place) })).filter((item) => item.point);
    this.tooltip.hidden = !shown.length;
    this.cursor.hidden = false;
    this.cursor.style.left = this.share(place);
    const away = (item) => (height === null ? (item.style.includes("other") ? 1 : 0) : Math.abs(item.point[1] - height));
    shown = shown.sort((a, b) => away(a) - away(b)).slice(0, MOST).sort((a, b) => a.point[1] - b.point[1]);
    const title = document.createElement("b"), at = this.across(place);
    title.textContent = `${this.unit} ${this.unit === "step" ? Math.round(at) : short(at)}`;
    this.tooltip.replaceChildren(title, ...shown.map((item) => {
      const row = document.createElement("span"), key = document.createElement("i");
      key.className = item.style;
      row.append(key, `${item.name}  ${this.valueAt(item.point[1])}`.trim());
      return row;
    }));
    const right = place > (this.from + this.to) / 2;
    this.tooltip.style.left = right ? "auto" : this.share(place);
    this.tooltip.style.right = right ? this.share(this.from + this.to - place) : "auto";
  }
  zoom(from, to) {
    const whole = to - from >= WIDTH;
    [this.from, this.to, this.high, this.low] = [from, to, 0, HEIGHT];
    const heights = this.lines.flatMap(({ points }) => points.flatMap(([x, y], n) => {
      const [before, other] = points[Math.max(0, n - 1)]; // the line to here may cross an edge of what is seen
      const edges = [from, to].filter((edge) => before < edge && edge < x);
      return [...(x >= from && x <= to ? [y] : []), ...edges.map((edge) => other + ((y - other) * (edge - before)) / (x - before))];
    }));
    if (!whole && !this.kind && heights.length) {
      const [least, most] = [Math.min(...heights), Math.max(...heights)], room = Math.max(1, (most - least) / 20);
      [this.high, this.low] = [Math.max(0, least - room), Math.min(HEIGHT, most + room)];
    }
    this.area.classList.toggle("zoomed", !whole);
    this.plot.setAttribute("viewBox", `${from} ${this.high} ${to - from} ${this.low - this.high}`);
    const written = (value, side, share) => {
      const label = Object.assign(document.createElement("span"), { textContent: String(value) });
      label.style[side] = `${100 * share}%`;
      return label;
    };
    const [begin, end] = [this.across(from), this.across(to)];
    const along = roundTicks(begin, end).map((value) => written(value, "left", (value - begin) / (end - begin)));
    this.x.replaceChildren(...(whole ? this.labels[1] : along));
    if (this.kind) return;
    const [base, peak] = [this.low, this.high].map((y) => this.bottom + (1 - y / HEIGHT) * (this.top - this.bottom));
    const up = roundTicks(base, peak), shares = up.map((value) => (value - base) / (peak - base));
    this.y.replaceChildren(...(whole ? this.labels[0] : up.map((value, n) => written(value, "bottom", shares[n]))));
    this.plot.querySelectorAll(".rule").forEach((rule) => rule.remove());
    this.plot.prepend(...(whole ? this.rules : shares.map((share) => {
      const rule = this.rules[0].cloneNode();
      for (const side of ["y1", "y2"]) rule.setAttribute(side, this.low - share * (this.low - this.high));
      return rule;
    })));
  }
}

class Group {
  constructor(first) {
    this.charts = [];
    this.place = WIDTH / 2;
    this.start = null;
    const hint = Object.assign(document.createElement("p"), { className: "note zoom" });
    this.all = Object.assign(document.createElement("button"), { type: "button", textContent: "show all", hidden: true });
    this.all.addEventListener("click", () => this.zoom(0, WIDTH));
    if (!groups.size) hint.append("Drag across a chart to zoom in; a double click shows all again. ");
    hint.append(this.all);
    first.area.closest(".charts").before(hint);
  }
  zoom(from, to) {
    if (to - from < 1e-3) return;
    this.all.hidden = to - from >= WIDTH;
    for (const chart of this.charts) chart.zoom(from, to);
  }
  hide() { for (const chart of this.charts) chart.hide(); }
  show(own, height) {
    for (const chart of this.charts) {
      chart.show(this.place, chart === own ? height : null);
      if (chart !== own && chart.lines.length > 2) chart.tooltip.hidden = true;
    }
  }
  add(chart) {
    this.charts.push(chart);
    const { area } = chart;
    const point = (event) => {
      const box = chart.plot.getBoundingClientRect();
      const share = clamp((WIDTH * (event.clientX - box.left)) / box.width) / WIDTH;
      this.place = chart.from + share * (chart.to - chart.from);
      this.show(chart, chart.high + ((event.clientY - box.top) / box.height) * (chart.low - chart.high));
      if (this.start === null) return;
      for (const { brush } of this.charts) {
        const [one, other] = [this.start.place, this.place].sort((a, b) => a - b).map((place) => parseFloat(chart.share(place)));
        brush.hidden = Math.abs(event.clientX - this.start.at) < DRAG;
        Object.assign(brush.style, { left: `${one}%`, width: `${other - one}%` });
      }
    };
    const end = (event) => {
      const start = this.start;
      this.start = null;
      for (const { brush } of this.charts) brush.hidden = true;
      if (start === null || event.type === "pointercancel" || Math.abs(event.clientX - start.at) < DRAG) return;
      this.zoom(Math.min(start.place, this.place), Math.max(start.place, this.place));
    };
    area.addEventListener("pointermove", point);
    area.addEventListener("pointerdown", (event) => {
      point(event);
      if (event.button === 0) this.start = { place: this.place, at: event.clientX };
      area.setPointerCapture(event.pointerId);
    });
    area.addEventListener("pointerup", end);
    area.addEventListener("pointercancel", end);
    area.addEventListener("pointerleave", () => this.hide());
    area.addEventListener("dblclick", () => this.zoom(0, WIDTH));
    area.addEventListener("blur", () => this.hide());
    area.addEventListener("keydown", (event) => {
      const view = chart.to - chart.from;
      const moves = { ArrowLeft: -view / 100, ArrowRight: view / 100, Home: -WIDTH, End: WIDTH };
      const zooms = { "+": view / 2, "-": view * 2 };
      if (event.key === "Escape") return this.hide(), this.zoom(0, WIDTH);
      if (!(event.key in moves || event.key in zooms)) return;
      event.preventDefault();
      this.place = Math.min(chart.to, Math.max(chart.from, this.place + (moves[event.key] ?? 0)));
      if (event.key in zooms) {
        const width = Math.min(WIDTH, zooms[event.key]), from = Math.min(WIDTH - width, Math.max(0, this.place - width / 2));
        this.zoom(from, from + width);
      }
      this.show(chart, null);
    });
  }
}

const groups = new Map();
for (const area of document.querySelectorAll(".area")) {
  const chart = new Chart(area);
  if (!groups.has(chart.unit)) groups.set(chart.unit, new Group(chart));
  groups.get(chart.unit).add(chart);
}
