"""What a report shows on a terminal and in Markdown, from real folders."""

import json

import pytest

from launcher.report import differences, markdown, plain, read
from launcher.runs import store
from launcher.runs.store import Run

from ..run_folders import finished, lines
from . import folders
from .folders import OTTER, OWL, document


def terminal(*paths, width=0):
    return "\n".join(plain.lines(document(*paths), width))


def tables(*paths):
    """The first table of each section, as its header and its rows of texts, by title."""
    found = {}
    for section in document(*paths).sections:
        for table in section.parts:
            if hasattr(table, "header"):
                found.setdefault(section.title, (table.header, [[cell.text for cell in row] for row in table.rows]))
    return found


def requested(path):
    """What was requested of a run, as its report shows it."""
    header, (row,) = tables(path)["Requested and observed"]
    return row[header.index("requested")]


def differing(*paths):
    """The values that differ between runs, by name."""
    return {name: values for name, *values in tables(*paths)["What differs"][1]}


def test_runs_stand_side_by_side_with_their_ratio_to_the_first(root):
    text = terminal(*folders.sweep(root))
    header, *rows = text.splitlines()[3:7]
    assert header.split()[:4] == ["run", "mode", "batch", "samples/s"]
    assert [row.split()[5] for row in rows] == ["1000", "2000", "2500"]
    assert [row.split()[6] for row in rows] == ["1.00", "2.00", "2.50"]
    assert "001 amp=o1  ████████████████████████        2000 samples/s (2.00x)" in text
    titles = [line for line in text.splitlines() if line.isupper()]
    assert titles == ["RESULTS", "REQUESTED AND OBSERVED", "WHAT DIFFERS"], "charts and provenance are for a page"


def test_a_run_alone_has_no_ratio(root):
    header = tables(folders.run(root, OTTER))["Results"][0]
    assert "samples/s" in header and "ratio" not in header


def test_what_was_requested_stands_beside_what_was_observed(root):
    header, (row,) = tables(folders.run(root, OTTER))["Requested and observed"]
    cells = dict(zip(header, row, strict=True))
    assert (cells["requested"], cells["resolved"]) == ("amp=o2 batch=128", "dtype auto -> bfloat16")
    assert (cells["verdict"], cells["why"]) == ("proved", "97% of the work in bfloat16")


def test_a_script_is_requested_by_its_line_and_has_no_batch(root):
    script = {"file": "script/train.py", "arguments": ["--lr", "0.1 0.2"]}
    folder = folders.run(root, OTTER, planned={"recipe": "script", "script": script})
    plan = store.read_json(folder / "plan.json")
    store.write_json(folder / "plan.json", {**plan, "settings": {**plan["settings"], "batch": 0}})
    (folder / "result.json").unlink()
    shown = tables(folder)
    assert "batch" not in shown["Results"][0]
    assert requested(folder) == "amp=o2 batch=128 train.py --lr '0.1 0.2'"


def test_published_rates_stand_beside_those_of_the_runs(root):
    for name, published, own in ((OTTER, 393.49, 300.0), (OWL, 1308.37, 900.0)):
        settings = {"amp": {"level": "o0"}, "train": {"published": published}}
        planned = {"recipe": "script", "script": {"file": "image:main.py"}, "settings": settings}
        resulted = {"throughput": {"unit": "samples/s", "mean": own}}
        folders.run(root, name, planned=planned, resulting=resulted)
    header, rows = tables(root / OTTER, root / OWL)["Results"]
    columns = [header.index(name) for name in ("samples/s", "ratio", "published samples/s", "published ratio")]
    assert [[row[column] for column in columns] for row in rows] == [
        ["300", "1.00", "393.49", "1.00"],
        ["900", "3.00", "1308.37", "3.33"],
    ]


STEPS = {"throughput": {"unit": "steps/s", "mean": 9.0, "counted": "AdamW"}}


@pytest.mark.parametrize(
    ("planned", "rates", "reason"),
    [
        ({"recipe": "gan"}, ({}, {}), "recipes (gan, mnist)"),
        ({"settings": {"data": {"name": "synthetic"}}}, ({}, {}), "data sets (digits, synthetic)"),
        ({}, ({}, STEPS), "units (samples/s, steps/s)"),
        ({}, ({"throughput": {**STEPS["throughput"], "counted": "SGD"}}, STEPS), "counts (AdamW, SGD)"),
    ],
)
def test_jobs_of_different_work_have_no_ratio(root, planned, rates, reason):
    digits = {"settings": {**folders.plan("o2")["settings"], "data": {"name": "digits"}}}
    runs = zip((OTTER, OWL), (digits, {**digits, **planned}), rates, strict=True)
    text = terminal(*(folders.run(root, name, planned=plan, resulting=rate) for name, plan, rate in runs))
    assert "ratio" not in text.splitlines()[3] and "x)" not in text
    assert f"No ratios: these runs are of different {reason}." in text


def test_a_run_without_a_result_is_a_row_that_says_so(root):
    complete = folders.run(root, OTTER)
    bare = finished(root, OWL, "failed", reason="the trainer was killed by signal 9")
    row = next(line for line in terminal(complete, bare).splitlines() if line.startswith("brave-owl"))
    assert row.endswith("failed: the trainer was killed by signal 9 (no result)")


def test_a_run_that_broke_off_has_the_figures_of_its_complete_rows(root):
    folder = folders.run(root, OTTER, steps=30, rate=1000.0)
    (folder / "result.json").unlink()
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 31')
    text = terminal(folder)
    assert "(no result, 30 steps)" in text
    assert "metrics.jsonl: its last line is half written and left out" in text
    assert f"{read.gather([Run(str(root), OTTER)])[0].metrics.rate:.4g}" in text


def test_what_is_the_same_in_all_runs_is_said_once_and_not_in_each_row(root):
    runs = folders.run(root, OTTER, "o0"), folders.run(root, OWL, "o2")
    header, _ = tables(*runs)["Where it comes from"]
    assert header == ("run", "id")
    assert "The same in all: created 2026-01-02T03:04:04Z; commit cccc" in markdown.render(document(*runs))


def test_two_runs_differ_in_settings_versions_and_hardware(root):
    one = folders.run(root, OTTER, "o0", resulting={"digests": {"data": f"sha256:{'a' * 64}"}})
    measured = {"versions": {"torch": "2.9"}, "hardware": {"gpu": "card"}, "throughput": {"mean": 7.0}}
    other = folders.run(root, OWL, "o2", resulting=measured)
    rows = differing(one, other)
    assert {"settings: amp.level", "plan: mechanism", "versions: torch", "hardware: gpu"} <= rows.keys()
    assert rows["data: digest"] == ["a" * 12, "-"]
    assert "settings: batch" not in rows
    (other / "result.json").unlink()
    rows = differing(one, other)
    assert "settings: amp.level" in rows and "versions: torch" not in rows, "which a run without a result has not"


def test_two_images_differ_by_name_alone_in_full(root):
    def of(name, image):
        more = {"planned": {"container": {"image": image}}, "resulting": {"digests": {"image": image}}}
        return folders.run(root, name, **more)

    names = ["nvcr.io/nvidia/pytorch:25.06-py3", "local/torch:1"]
    rows = differing(of(OTTER, names[0]), of(OWL, names[1]))
    assert rows["image: name"] == names
    assert "image: digest" not in rows


def test_more_runs_than_fit_side_by_side_are_not_compared(root, monkeypatch):
    monkeypatch.setattr(differences, "MOST_RUNS", 2)
    runs = folders.sweep(root)
    assert ["What differs" in tables(*runs[:count]) for count in (1, 2, 3)] == [False, True, False]


def test_two_equal_runs_differ_in_nothing(root):
    assert list(differing(folders.run(root, OTTER), folders.run(root, OWL))) == ["nothing differs"]


def test_commits_are_short_where_they_differ_and_full_where_a_run_comes_from(root):
    one, other = folders.run(root, OTTER), folders.run(root, OWL)
    provenance = store.read_json(other / "provenance.json")
    store.write_json(other / "provenance.json", {**provenance, "code": {"commit": "e" * 40}})
    assert differing(one, other)["code: commit"] == ["c" * 12, "e" * 12]
    header, rows = tables(one, other)["Where it comes from"]
    assert [row[header.index("commit")] for row in rows] == ["c" * 40, "e" * 40]


def test_the_commit_of_a_script_is_that_of_its_own_checkout(root):
    old = "20260102-030407-old-fox"
    planned = {"planned": {"script": {"file": "script/train.py", "workdir": "/"}}}
    runs = folders.run(root, OTTER, **planned), folders.run(root, OWL, **planned), folders.run(root, old, **planned)
    for folder, commit in zip(runs, "ab", strict=False):  # the third is of a launcher that did not record it
        provenance = store.read_json(folder / "provenance.json")
        script = {"root": "/project", "commit": commit * 40, "dirty": commit == "a", "diff": ""}
        store.write_json(folder / "provenance.json", {**provenance, "script": script})
    rows = differing(*runs)
    assert rows["code: commit"] == ["a" * 12, "b" * 12, "-"] and "code: launcher.commit" not in rows
    header, rows = tables(*runs)["Where it comes from"]
    assert [row[header.index("commit")] for row in rows] == ["a" * 40 + " with changes", "b" * 40, "-"]


def test_where_the_code_of_two_runs_differs_its_files_are_named(root):
    runs = []
    for name, code in ((OTTER, "aa"), (OWL, "bb")):
        runs.append(folders.run(root, name, planned={"code": code, "run_root": str(root)}))
        for file, text in (
            ("recipes/same.py", "same"),
            ("recipes/other.py", code),
            (f"only_{code}.py", ""),
            (f"__pycache__/only_{code}.pyc", ""),
        ):
            (root / ".code" / code / file).parent.mkdir(parents=True, exist_ok=True)
            (root / ".code" / code / file).write_text(text)
    assert "Their code differs in only_aa.py, only_bb.py, recipes/other.py." in terminal(*runs)
    (root / ".code" / "aa").rename(root / ".code" / "gone")
    assert "Their code differs; the snapshots of it are not both here." in terminal(*runs)


def test_two_scripts_differ_in_their_file_and_arguments(root):
    scripts = [("script/train.py", ["--lr", "0.1"]), ("script/tools/tune.py", ["--name", "a b"])]
    runs = [
        folders.run(root, name, planned={"recipe": "script", "script": {"file": file, "arguments": arguments}})
        for name, (file, arguments) in zip((OTTER, OWL), scripts, strict=True)
    ]
    assert [requested(run).rpartition("128 ")[2] for run in runs] == ["train.py --lr 0.1", "tools/tune.py --name 'a b'"]
    rows = differing(*runs)
    assert rows["plan: script"] == ["train.py", "tools/tune.py"]
    assert rows["plan: script.arguments"] == ["--lr 0.1", "--name 'a b'"]


@pytest.mark.parametrize("width", [40, 60, 80, 90])
def test_a_report_fits_the_terminal(root, width):
    lines = terminal(*folders.sweep(root), width=width).splitlines()
    # A title and the names of settings in the table of what differs are never cut.
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    assert any("█" in line for line in lines)
    if width == 60:
        assert "002 amp=o2\n  mode         o2 bfloat16" in "\n".join(lines), "a block for each row"
    if width == 90:
        header = lines[lines.index("RESULTS") + 1].split()
        assert {"run", "mode", "samples/s", "accuracy", "proof", "state"} <= set(header)
        assert "(no room for peak memory, skipped in 90 columns)" in lines


def test_cells_of_two_sweeps_have_different_labels(root):
    planned = {"swept": [["amp", "o2"]]}
    runs = [
        folders.run(root, f"20260103-00000{n}-calm-{word}-000", planned=planned) for n, word in ((1, "a"), (2, "b"))
    ]
    evidence = read.gather([Run(str(root), run.name) for run in runs])
    assert [run.label for run in evidence] == ["calm-a 000 amp=o2", "calm-b 000 amp=o2"]


def test_beside_other_runs_a_comparison_is_its_arms(root):
    alone, comparison = folders.run(root, OTTER), folders.run(root, OWL)
    plan = folders.plan("o0", comparison={"rounds": 1, "steps": 5}, arms=[])
    (comparison / "arms").mkdir()
    for number, level in enumerate(("o0", "o2")):
        arm = folders.run(root / "arms-of", f"20260102-03040{number}-some-arm", level)
        arm.rename(comparison / "arms" / f"{number:02}")
        plan["arms"].append({"arm": f"{number:02}", "swept": [["amp", level]]})
    store.write_json(comparison / "plan.json", plan)
    labels = [row[0] for row in tables(alone, comparison)["Results"][1]]
    assert labels == ["brave-otter", "brave-owl amp=o0", "brave-owl amp=o2"]


def test_markdown_shows_hostile_text_as_it_is(root):
    folder = folders.run(root, OTTER)
    store.write_json(folder / "plan.json", {**folders.plan("o2"), "words": ["name=<script>|`x`|*y*"]})
    text = markdown.render(document(folder))
    assert "<script>" not in text
    assert r"name=\<script\>\|\`x\`\|\*y\*" in text
    assert len([line for line in text.splitlines() if line.startswith("| brave")]) == 3


def test_markdown_has_tables_and_the_command_to_repeat_it(root):
    text = markdown.render(document(*folders.sweep(root)))
    assert "| run | mode | batch | samples/s |" in text
    assert "```\npython -m launcher amp=o0\n" in text


@pytest.mark.parametrize("has_result", [True, False])
def test_a_last_loss_that_is_not_finite_is_shown_as_that(root, has_result):
    folder = folders.run(root, OTTER, steps=3, resulting={"loss": {"first": 2.3}, "nonfinite": ["loss.last"]})
    rows = lines(folder / "metrics.jsonl")
    rows[3] |= {"loss": None, "nonfinite": ["loss"]}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not has_result:
        (folder / "result.json").unlink()
    header, (row,) = tables(folder)["Results"]
    assert row[header.index("loss")] == "not finite"


def test_files_that_cannot_be_read_are_named_and_the_rest_is_shown(root):
    folder = folders.run(root, OTTER)
    (folder / "metrics.jsonl").unlink()
    for name in ("metrics.jsonl", "telemetry/1-0.gpu.csv"):
        (folder / name).mkdir(parents=True)
    (folder / "telemetry/1-1.gpu.csv").write_text("Unable to determine the device handle for GPU0: GPU is lost\n")
    text = terminal(folder)
    for problem in (
        "metrics.jsonl can't be read: it is not a regular file",
        "telemetry: 1-0.gpu.csv can't be read: it is not a regular file",
        "telemetry: Unable to determine the device handle for GPU0: GPU is lost",
    ):
        assert f"brave-otter: {problem}" in text
    assert "proved" in text
    (folder / "result.json").write_text('{"schema": 1, "thr')
    _, problems = terminal(folder).split("WHAT COULD NOT BE READ")
    assert "brave-otter: result.json can't be read" in problems


@pytest.mark.parametrize("value", [None, "text", [1], {"mean": "fast"}])
def test_a_result_of_another_shape_is_a_run_without_that_figure(root, value):
    folder = folders.run(root, OTTER, resulting={"throughput": value})
    (folder / "metrics.jsonl").unlink()
    assert "samples/s" not in terminal(folder)
