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

// What the curves of a chart are where it is pointed at, by pointer, finger, or the arrow keys.
const MOST = 8;
const NEAR = 25; // of the 1000 that a plot is wide: how far from its end a curve is still read out
for (const area of document.querySelectorAll(".area")) {
  const plot = area.querySelector("svg");
  const [left, right] = plot.dataset.across.split(" ").map(Number);
  const [bottom, top] = plot.dataset.up.split(" ").map(Number);
  const { x: unit, unit: kind, steps } = plot.dataset;
  const cursor = area.appendChild(Object.assign(document.createElement("div"), { className: "cursor", hidden: true }));
  const tooltip = area.appendChild(Object.assign(document.createElement("div"), { className: "tooltip", hidden: true }));
  tooltip.setAttribute("role", "status");
  let lines = null;
  let place = 500;

  const readLines = () => Array.from(plot.querySelectorAll("polyline"), (item) => ({
    name: item.dataset.name,
    style: item.getAttribute("class").replace("line", "key"),
    points: item.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
  }));
  const short = (value) => String(Number(value.toPrecision(3)));
  const valueAt = (y) => {
    const value = bottom + (1 - y / 300) * (top - bottom);
    if (kind === "log2") return String(Number((2 ** value).toPrecision(3)));
    if (kind !== "bytes") return short(value);
    const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
    return `${short(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  };
  const pointOf = (points) => {
    if (place < points[0][0] - NEAR || place > points[points.length - 1][0] + NEAR) return null;
    const after = points.findIndex((item) => item[0] > place);
    const next = after < 0 ? points.length - 1 : after, before = Math.max(0, after < 0 ? next : after - 1);
    if (steps !== undefined) return points[before];
    return place - points[before][0] < points[next][0] - place ? points[before] : points[next];
  };
  const hide = () => { cursor.hidden = tooltip.hidden = true; };
  const show = (height) => {
    lines ??= readLines();
    let shown = lines.map((item) => ({ ...item, point: pointOf(item.points) })).filter((item) => item.point);
    if (!shown.length) return hide();
    const away = (item) => (height === null ? (item.style.includes("other") ? 1 : 0) : Math.abs(item.point[1] - height));
    shown = shown.sort((a, b) => away(a) - away(b)).slice(0, MOST).sort((a, b) => a.point[1] - b.point[1]);
    const at = left + (place / 1000) * (right - left);
    const title = document.createElement("b");
    title.textContent = `${unit} ${unit === "step" ? Math.round(at) : short(at)}`;
    tooltip.replaceChildren(title, ...shown.map((item) => {
      const row = document.createElement("span"), key = document.createElement("i");
      key.className = item.style;
      row.append(key, `${item.name}  ${valueAt(item.point[1])}`);
      return row;
    }));
    cursor.hidden = tooltip.hidden = false;
    cursor.style.left = `${place / 10}%`;
    tooltip.style.left = place < 500 ? `${place / 10}%` : "auto";
    tooltip.style.right = place < 500 ? "auto" : `${100 - place / 10}%`;
  };
  const point = (event) => {
    const box = plot.getBoundingClientRect();
    place = Math.min(1000, Math.max(0, (1000 * (event.clientX - box.left)) / box.width));
    show((300 * (event.clientY - box.top)) / box.height);
  };
  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -10, ArrowRight: 10, Home: -1000, End: 1000 };
    if (event.key === "Escape") return hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    place = Math.min(1000, Math.max(0, place + moves[event.key]));
    show(null);
  });
}
