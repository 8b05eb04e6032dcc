// A press on a column's name sorts by it, a second one the other way round; what has no value stays last.
"use strict";
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const column = heading.cellIndex;
    const isNumber = heading.classList.contains("number");
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const each of heading.parentElement.children) each.removeAttribute("aria-sort");
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
