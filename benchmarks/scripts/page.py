"""The page of all rows, and the record that it is written from."""

from __future__ import annotations

import json
import shlex
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.scripts.table import Row

INTRO = """\
# Scripts tried

Training scripts that nobody here wrote, alone with plain Python and under the launcher. `python -m benchmarks scripts`
runs them again and writes this page; `--only NAME` and `--list` choose. Each is a tiny model on made-up data.

- `o0`: bit-identical to the script alone? The verdict of the proof.
- `o1`: does it end as alone, with as many finite losses? Its losses differ, as they are bfloat16's.
- `own mode`: `train.precision=script` around the mode of the script's library, beside the same alone.
- `time`: seconds alone, ratios at o0 and o1, with the launcher's own start, which weighs much in runs this short.

`unknown` is no success of the proof. What two runs alone don't share is not compared.
"""


def in_words(machine: dict[str, Any]) -> str:
    return f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Python {machine['python']}"


def good(result: dict[str, Any]) -> bool:
    """Whether it ended as alone in every mode, and each was proved."""
    return "failed" not in result and all(
        mode["same"] and mode["verdict"] == "proved" for mode in result["modes"].values()
    )


def summary(result: dict[str, Any]) -> list[str]:
    """A line for each mode."""
    if "failed" in result:
        return [f"not run: {result['failed']}"]
    return [f"{name}: {_cell(mode)}{_details(mode)}" for name, mode in result["modes"].items()]


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
    same = sum(all(mode["same"] for mode in result["modes"].values()) for result in ran.values())
    lines = [
        INTRO,
        f"{len(now)} scripts, {len(ran)} ran; {same} end as alone in every mode; "
        f"{sum(map(good, ran.values()))} are proved in every mode as well.\n",
        "| script | version | o0 | o1 | own mode | time | tried |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(name, result) for name, result in now.items()),
    ]
    changed = {name: entry["first"] for name, entry in kept.items() if "first" in entry and _differs(entry)}
    lines += [
        "\n## First results\n",
        "Published before anything was fixed; a row that isn't here is as it was first.\n",
    ]
    for name, result in changed.items():
        lines += [_item(f"{name}, {line}") for line in summary(result)]
    lines += ["\n## Each script"]
    for name, result in now.items():
        lines += _section(rows[name], result)
    machines = dict.fromkeys(f"{result['machine']}, torch {result['torch'] or 'none'}" for result in ran.values())
    lines += ["\n## Machines\n", *(_item(machine) for machine in machines)]
    return "\n".join(lines) + "\n"


def _differs(entry: dict[str, Any]) -> bool:
    def cells(result: dict[str, Any]) -> list[str]:
        return [_cell(mode) for mode in result.get("modes", {}).values()]

    return cells(entry["first"]) != cells(entry["now"])


def _line(name: str, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"| {name} | | not run | | | | {result['date']} |"
    modes = result["modes"]
    cells = [_cell(modes[mode]) if mode in modes else "" for mode in ("o0", "o1", "script")]
    time = f"{result['seconds']} s, {modes['o0']['ratio']}, {modes['o1']['ratio']}"
    return f"| {' | '.join([name, result['version'], *cells, time, result['date']])} |"


def _cell(mode: dict[str, Any]) -> str:
    ends = ("identical" if mode["compared"] else "ends as alone") if mode["same"] else "DIFFERS"
    return f"{ends}, {mode['verdict'] or 'no verdict'}"


def _details(mode: dict[str, Any]) -> str:
    parts = [*mode["differences"], mode["said"]]
    if mode["verdict"] != "proved":
        parts.append(mode["why"])
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
    lines += [_item(f"edited: {file}, `{old.strip()}` to `{new.strip()}`") for file, old, new in row.edits]
    return [*lines, *(_item(line) for line in summary(result))]


def _item(line: str) -> str:
    return textwrap.fill(
        " ".join(line.split()),
        120,
        initial_indent="- ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
