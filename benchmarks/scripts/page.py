"""The page of all rows, and the record that it is written from."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.scripts.table import Row

INTRO = """\
<!-- not run: would fetch 31 repositories; `python -m benchmarks scripts` runs them and writes this page -->
# Scripts tried

Training scripts that nobody here wrote, alone with plain Python and under the launcher. `python -m benchmarks scripts`
runs them again and writes this page; `--only NAME` and `--list` choose. Each is a tiny model on made-up data.

- `o0`: bit-identical to the script alone? The verdict of the proof.
- `o1`: does it end as alone, with as many finite losses? Its losses differ, as they are bfloat16's.
- A script into which our edits put the calls of a precision is compared bit for bit in each of its modes, which its
  section lists, and cut short and resumed from what it saves itself.
- `own mode`: `train.precision=script` around the mode of the script's library, beside the same alone.
- `time`: seconds alone, ratios at o0 and o1, with the launcher's own start, which weighs much in runs this short, on a
  machine that did other work too.

`unknown` is no success of the proof. `rightly` stands before another verdict that is right, for a reason that the
script's own section gives; a script that is contradicted is ended, and where nothing can apply a mode it is `refused`
before it starts. What two runs alone don't share is not compared.
"""


_COMPARED = re.compile(r"\b[1-9]\d* (losses|of)\b")
"""That losses or files were compared, and not the exit code alone."""


def in_words(machine: dict[str, Any]) -> str:
    return f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Python {machine['python']}"


def good(row: Row, result: dict[str, Any]) -> bool:
    """Whether each mode ended as it should, with the verdict that is right."""
    return "failed" not in result and all(
        _ends_well(row, name, mode) and _verdict(mode) == _right(row, name) for name, mode in result["modes"].items()
    )


def _ends_well(row: Row, name: str, mode: dict[str, Any]) -> bool:
    """Whether it ended as alone, or was ended as it should be."""
    ended = _right(row, name) == _verdict(mode) and mode["code"] == {"contradicted": 1, "refused": 2}.get(
        _verdict(mode)
    )
    return bool(mode["same"] or ended)


def _verdict(mode: dict[str, Any]) -> str:
    refused = mode["code"] == 2 and mode["said"].startswith("error: ")
    return str(mode["verdict"] or ("refused" if refused else "no verdict"))


def _right(row: Row, name: str) -> str:
    return row.right[name][0] if name in row.right else "proved"


def summary(row: Row, result: dict[str, Any]) -> list[str]:
    """A line for each mode."""
    if "failed" in result:
        return [f"not run: {result['failed']}"]
    return [f"{name}: {_cell(row, name, mode)}{_details(row, name, mode)}" for name, mode in result["modes"].items()]


def keep(row: Row, result: dict[str, Any], rows: dict[str, Row], record: Path, page: Path) -> None:
    """Add a row's result to the record, its first one for good, and write the page."""
    kept = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    entry = kept.setdefault(row.name, {})
    if "failed" not in result or "now" not in entry:  # a missing download replaces no result
        entry["now"] = result
    if "failed" not in result:
        entry.setdefault("first", result)
    record.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page.write_text(text({name: kept[name] for name in rows if name in kept}, rows), encoding="utf-8")


def text(kept: dict[str, Any], rows: dict[str, Row]) -> str:
    now = {name: entry["now"] for name, entry in kept.items()}
    ran = {name: result for name, result in now.items() if "failed" not in result}
    well = sum(
        all(_ends_well(rows[name], mode, found) for mode, found in result["modes"].items())
        for name, result in ran.items()
    )
    proved = sum(all(_verdict(mode) == "proved" for mode in result["modes"].values()) for result in ran.values())
    lines = [
        INTRO,
        textwrap.fill(
            f"{len(now)} scripts, {len(ran)} ran; {well} end as they should in every mode; "
            f"{sum(good(rows[name], result) for name, result in ran.items())} have the right verdict in every mode as "
            f"well; {proved} are proved in every mode.",
            120,
        ),
        "",
        "| script | version | o0 | o1 | own mode | time | tried |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(rows[name], result) for name, result in now.items()),
    ]
    lines += [
        "\n## First results\n",
        "Published before anything was fixed; a row that isn't here is as it was first.\n",
    ]
    for name, entry in kept.items():
        if "first" in entry and _differs(rows[name], entry):
            lines += [_item(f"{name}, {line}") for line in summary(rows[name], entry["first"])]
    lines += ["\n## Each script"]
    for name, result in now.items():
        lines += _section(rows[name], result)
    machines = dict.fromkeys(f"{result['machine']}, torch {result['torch'] or 'none'}" for result in ran.values())
    lines += ["\n## Machines\n", *(_item(machine) for machine in machines)]
    return "\n".join(lines) + "\n"


def _differs(row: Row, entry: dict[str, Any]) -> bool:
    def cells(result: dict[str, Any]) -> list[str]:
        return [_cell(row, name, mode) for name, mode in result.get("modes", {}).items()]

    return cells(entry["first"]) != cells(entry["now"])


def _line(row: Row, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"| {row.name} | | not run | | | | {result['date']} |"
    modes = result["modes"]
    cells = [_cell(row, mode, modes[mode]) if mode in modes else "" for mode in ("o0", "o1", "script")]
    time = f"{result['seconds']} s, {modes['o0']['ratio']}, {modes['o1']['ratio']}"
    return f"| {' | '.join([row.name, result['version'], *cells, time, result['date']])} |"


def _cell(row: Row, name: str, mode: dict[str, Any]) -> str:
    verdict = f"{'rightly ' * _is_right(row, name, mode)}{_verdict(mode)}"
    if mode["same"]:
        return f"{'identical' if _COMPARED.search(mode['compared']) else 'ends as alone'}, {verdict}"
    if not _ends_well(row, name, mode):
        return f"DIFFERS, {verdict}"
    return verdict if _verdict(mode) == "refused" else f"ended, {verdict}"


def _is_right(row: Row, name: str, mode: dict[str, Any]) -> bool:
    """Whether it has the verdict that the row names in place of a proof."""
    return name in row.right and _verdict(mode) == _right(row, name)


def _details(row: Row, name: str, mode: dict[str, Any]) -> str:
    parts = [*mode["differences"], mode["said"]]
    if mode["verdict"] != "proved":
        parts.append(mode["why"])
    if _is_right(row, name, mode):
        parts = [row.right[name][1], *(parts if _verdict(mode) != "refused" else [mode["said"]])]
    given = "; ".join(part for part in parts if part)
    return f" ({mode['compared']})" * bool(mode["compared"]) + f": {given}" * bool(given)


def _section(row: Row, result: dict[str, Any]) -> list[str]:
    command = shlex.join(["python", row.script, *map(str, row.arguments)])
    lines = [f"\n### {row.name}\n", textwrap.fill(f"{row.about[0].upper()}{row.about[1:]}.", 120), ""]
    lines += textwrap.wrap(
        command,
        120,
        initial_indent="    ",
        subsequent_indent="        ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    lines.append("")
    if row.own:
        added = [f"{key}={value}" for key, value in row.own.get("environ", {}).items()]
        lines.append(_item(f"own mode: {shlex.join([*added, *map(str, row.own.get('arguments', ()))])}"))
    for file, old, new in row.edits:
        to = f"to `{new.strip()}`" if new.strip() else "left out"
        lines.append(_item(f"edited: {file}, `{old.strip()}` {to}"))
    return [*lines, *(_item(line) for line in summary(row, result))]


def _item(line: str) -> str:
    return textwrap.fill(
        " ".join(line.split()),
        120,
        initial_indent="- ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
