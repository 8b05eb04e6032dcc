"""Run folders with anything in them: every screen shows what can be read, and none ends in a traceback."""

import copy
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.commands import ls
from launcher.compare import documents, write_result
from launcher.compare.last_words import last_words
from launcher.executors import backends
from launcher.report import markdown, page, plain, read, sections
from launcher.runs import store
from launcher.runs.selection import Selection
from launcher.runs.store import Run
from launcher.ui import details, live
from tests.launcher.compare import folders as comparisons

from ..run_folders import lines
from . import folders

WRONG = [
    *(None, "text", "", "\x1b[31mred\0", 3, -1, 1.5, float("nan"), float("inf"), True, 10**400, 2**70, "x" * 3000),
    *([], [1], [[1, 2]], ["a"], [None], [{}], {}, {"a": 1}, {"": None}),
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Two cells of a sweep and a comparison that are done, telemetry included."""
    root = tmp_path_factory.mktemp("intact")
    made = folders.sweep(root, ("o0", "o2"))
    folder = root / "20260104-000000-cool-owl"
    folder.mkdir()
    comparisons.plan_of(folder, ("o0", [1] * 5), ("o2", [2] * 5))
    for name in ("status.json", "submission.json"):
        shutil.copy(made[0] / name, folder)
    for run in (*made, folder / "arms" / "01"):
        (run / "telemetry").mkdir()
        (run / "telemetry" / "1-0.host.csv").write_text("time\n100, 10, 100, 1024, 4096\n101, 60, 200, 2048, 4096\n")
        gpus = "timestamp, index, uuid, memory.used [MiB]\n2026/11/21 00:00:10.000, 0, GPU-a, 3000\n"
        (run / "telemetry" / "1-0.gpu.csv").write_text(gpus)
    return root


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def with_one_wrong(value, draw):
    """The value with one place of it, maybe all, replaced or left out."""
    *outer, last = ("value", *draw(st.sampled_from(list(places(value)))))
    damaged = {"value": copy.deepcopy(value)}
    at = damaged
    for key in outer:
        at = at[key]
    if isinstance(at, dict) and outer and draw(st.booleans()):
        del at[last]
    else:
        at[last] = draw(st.sampled_from(WRONG))
    return damaged["value"]


def damage(path, draw):
    how = draw(st.sampled_from(["value", "value", "value", "bytes", "cut", "no file", "no access", "a folder"]))
    content = path.read_bytes()
    if how == "value" and path.suffix == ".json":
        path.write_text(json.dumps(with_one_wrong(json.loads(content), draw)))
    elif how == "value" and path.suffix == ".jsonl":
        rows = lines(path)
        number = draw(st.integers(0, len(rows) - 1))
        rows[number] = with_one_wrong(rows[number], draw)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif how == "cut":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    elif how in ("no file", "no access", "a folder"):
        path.unlink()
        if how == "no access":
            path.symlink_to(path)  # which nobody can open, not even root
        elif how == "a folder":
            path.mkdir()
    else:
        place, junk = draw(st.integers(0, len(content))), draw(st.sampled_from([b"\0" * 9, b"\xff\xfe\n", b"[" * 9999]))
        path.write_bytes(content[:place] + junk + content[place:])


def every_screen(root):
    wanted = [Run(str(root), path.name) for path in sorted(root.iterdir()) if not path.name.startswith(".")]
    for count in (1, 3):
        document = sections.of_runs("runs", read.gather(wanted[:count]))
        assert [*plain.lines(document, 60), markdown.render(document), page.render(document)]
    alone = documents.of([Selection(None, (wanted[2],))], [wanted[2]])
    assert [*plain.lines(alone), page.render(alone)]
    seen = backends.states_of(wanted)
    assert ls.listing(seen, 0, [str(root)]) and all(map(details.lines, seen))
    followed = [live.Followed(run.folder) for run in wanted]
    live._refresh(followed)
    assert [row for run in followed for row in run.rows()]
    assert all(last_words({run.folder: run.state}) for run in followed)
    write_result.document(wanted[2].folder, seen[2].state)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_any_files_ends_a_screen(intact, tmp_path, data):
    root = tmp_path / "runs"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(intact, root)
    files = sorted(path for path in root.rglob("*") if path.suffix in (".json", ".jsonl", ".csv"))
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True)):
        damage(path, data.draw)
    every_screen(root)


def test_an_intact_folder_has_no_problems_and_damage_is_named(intact, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(intact, root)
    run = Run(str(root), f"{folders.SWEEP}-000")
    assert read.gather([run])[0].problems == ()
    path = run.folder / "result.json"
    path.write_text(json.dumps({**store.read_json(path), "throughput": {"mean": "fast"}}))
    (run.folder / "provenance.json").write_text("{")
    (evidence,) = read.gather([run])
    assert evidence.problems[0] == "result.json: throughput.mean is not a number, and left out"
    assert evidence.problems[1].startswith("provenance.json can't be read: ")
    assert evidence.result.peak_memory_bytes
