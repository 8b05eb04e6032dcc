"""What a report says on a terminal and in Markdown, from real folders."""

import json
import re

import pytest

from launcher.report import charts, chosen, markdown, page, plain, read, sections
from launcher.report.document import Curves, Line
from launcher.runs import store
from launcher.runs.schema import Losses, ResultRecord
from launcher.runs.store import Run

from ..run_folders import finished
from . import folders


def documented(*paths):
    evidence = read.gather([Run(str(path.parent), path.name) for path in paths])
    return sections.of_runs("some runs", evidence)


def drawn(document, title):
    """The chart of that title."""
    (found,) = [part for section in document.sections for part in section.parts if getattr(part, "title", "") == title]
    return found


def terminal(*paths, width=0):
    return "\n".join(plain.lines(documented(*paths), width))


def test_runs_stand_side_by_side_with_their_ratio_to_the_first(root):
    said = terminal(*folders.sweep(root))
    header, *rows = said.splitlines()[3:7]
    assert header.split()[:4] == ["run", "mode", "batch", "samples/s"]
    assert [row.split()[5] for row in rows] == ["1000", "2000", "2500"]
    assert [row.split()[6] for row in rows] == ["1.00", "2.00", "2.50"]
    assert "001 amp=o1  ████████████████████████        2000 samples/s (2.00x)" in said


def test_what_was_asked_stands_beside_what_was_observed(root):
    said = terminal(folders.run(root, "20260102-030405-brave-otter"))
    assert "dtype auto -> bfloat16" in said
    assert "97% of the work in bfloat16" in said
    assert "proved" in said


def test_a_script_is_asked_for_by_its_line_and_has_no_batch(root):
    script = {"file": "script/train.py", "arguments": ["--lr", "0.1 0.2"]}
    folder = folders.run(root, "20260102-030405-brave-otter", planned={"recipe": "script", "script": script})
    plan = json.loads((folder / "plan.json").read_text())
    store.write_json(folder / "plan.json", {**plan, "settings": {**plan["settings"], "batch": 0}})
    (folder / "result.json").unlink()
    document = documented(folder)
    results, asked = document.sections[0].parts[0], document.sections[1].parts[0]
    assert "batch" not in results.header
    assert asked.rows[0][2].text == "amp=o2 batch=128 train.py --lr '0.1 0.2'"


def test_jobs_of_different_recipes_have_no_ratio(root):
    one = folders.run(root, "20260102-030405-brave-otter")
    other = folders.run(root, "20260102-030406-brave-owl", planned={"recipe": "gan"})
    said = terminal(one, other)
    assert "ratio" not in said.splitlines()[3] and "x)" not in said
    assert "No ratios: these runs are of different recipes (gan, mnist)." in said


def test_a_run_without_a_result_is_a_row_that_says_so(root):
    whole = folders.run(root, "20260102-030405-brave-otter")
    bare = finished(root, "20260102-030406-brave-owl", "failed", reason="the trainer was killed by signal 9")
    row = next(line for line in terminal(whole, bare).splitlines() if line.startswith("brave-owl"))
    assert row.endswith("failed: the trainer was killed by signal 9 (no result)")


def test_a_run_that_broke_off_is_told_with_the_figures_of_its_whole_rows(root):
    folder = folders.run(root, "20260102-030405-brave-otter", steps=30, rate=1000.0)
    (folder / "result.json").unlink()
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 31')
    said = terminal(folder)
    assert "(no result, 30 steps)" in said
    assert "metrics.jsonl: its last line is half written and left out" in said
    found = read.gather([Run(str(root), folder.name)])[0].metrics
    assert f"{found.rate:.4g}" in said


def test_a_damaged_result_is_said_with_the_run(root):
    folder = folders.run(root, "20260102-030405-brave-otter")
    (folder / "result.json").write_text('{"schema": 1, "thr')
    said = terminal(folder)
    assert "WHAT COULD NOT BE READ" in said
    assert "brave-otter: result.json can't be read" in said


def test_two_runs_say_what_differs_from_settings_to_results(root):
    one = folders.run(root, "20260102-030405-brave-otter", "o0")
    other = folders.run(
        root,
        "20260102-030406-brave-owl",
        "o2",
        resulting={"versions": {"torch": "2.9"}, "hardware": {"gpu": "card"}, "digests": {"code": "abc"}},
    )
    said = terminal(one, other)
    differing = said[said.index("WHAT DIFFERS") :]
    for key in ("settings: amp.level", "plan: mechanism", "versions: torch", "hardware: gpu"):
        assert key in differing
    assert "settings: batch" not in differing


def test_a_run_without_a_result_does_not_differ_in_all_of_it(root):
    one = folders.run(root, "20260102-030405-brave-otter", "o0")
    other = folders.run(root, "20260102-030406-brave-owl", "o2")
    (other / "result.json").unlink()
    said = terminal(one, other)
    differing = said[said.index("WHAT DIFFERS") :]
    assert "settings: amp.level" in differing
    assert "result: " not in differing


def test_figures_that_differ_bear_their_units_and_digests_are_short(root):
    one = folders.run(root, "20260102-030405-brave-otter", resulting={"digests": {"data": f"sha256:{'a' * 64}"}})
    other = folders.run(root, "20260102-030406-brave-owl", resulting={"throughput": {"mean": 7.0}})
    differing = terminal(one, other)
    assert "result: throughput.mean (samples/s)" in differing
    assert f"{'a' * 12}  " in differing and "a" * 13 not in differing


def test_commits_are_short_where_they_differ_and_whole_where_a_run_comes_from(root):
    one = folders.run(root, "20260102-030405-brave-otter")
    other = folders.run(root, "20260102-030406-brave-owl")
    came = store.read_json(other / "provenance.json")
    store.write_json(other / "provenance.json", {**came, "code": {"commit": "e" * 40}})
    by_title = {section.title: section.parts[0] for section in documented(one, other).sections}
    (row,) = [row for row in by_title["What differs"].rows if row[0].text == "code: commit"]
    assert [cell.text for cell in row[1:]] == ["c" * 12, "e" * 12]
    whole = by_title["Where it comes from"]
    assert [row[whole.header.index("commit")].text for row in whole.rows] == ["c" * 40, "e" * 40]


def test_where_the_code_of_two_runs_differs_its_files_are_named(root):
    made = []
    for number, code in enumerate(("aa", "bb")):
        planned = {"code": code, "run_root": str(root)}
        made.append(folders.run(root, f"20260102-03040{number}-brave-otter", planned=planned))
        (root / ".code" / code / "recipes").mkdir(parents=True)
        (root / ".code" / code / "recipes" / "same.py").write_text("same")
        (root / ".code" / code / "recipes" / "other.py").write_text(code)
        (root / ".code" / code / f"only_{code}.py").touch()
        (root / ".code" / code / "__pycache__").mkdir()
        (root / ".code" / code / "__pycache__" / f"only_{code}.pyc").touch()
    assert "Their code differs in only_aa.py, only_bb.py, recipes/other.py." in terminal(*made)
    (root / ".code" / "aa").rename(root / ".code" / "gone")
    assert "Their code differs; the snapshots of it are not both here." in terminal(*made)


def test_two_scripts_differ_in_their_file_and_arguments(root):
    scripts = [
        {"file": "script/train.py", "arguments": ["--lr", "0.1"]},
        {"file": "script/tools/tune.py", "arguments": ["--name", "a b"]},
    ]
    runs = [
        folders.run(root, f"20260102-03040{number}-brave-otter", planned={"recipe": "script", "script": script})
        for number, script in enumerate(scripts)
    ]
    by_title = {section.title: section.parts[0] for section in documented(*runs).sections}
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in by_title["What differs"].rows}
    assert rows["plan: script"] == ["train.py", "tools/tune.py"]
    assert rows["plan: script.arguments"] == ["--lr 0.1", "--name 'a b'"]


def test_two_equal_runs_differ_in_nothing(root):
    one = folders.run(root, "20260102-030405-brave-otter")
    other = folders.run(root, "20260102-030406-brave-owl")
    assert "nothing differs" in terminal(one, other)


def test_a_table_wider_than_the_terminal_becomes_a_block_for_each_row(root):
    said = terminal(*folders.sweep(root), width=60)
    assert "002 amp=o2\n  mode         o2 bfloat16" in said


def test_a_narrow_terminal_loses_the_least_wanted_columns_of_the_results(root):
    lines = terminal(*folders.sweep(root), width=90).splitlines()
    header = lines[lines.index("RESULTS") + 1].split()
    assert {"run", "mode", "samples/s", "accuracy", "proof", "state"} <= set(header)
    assert "(no room for peak memory, skipped in 90 columns)" in lines


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_report_fits_the_terminal(root, width):
    lines = terminal(*folders.sweep(root), width=width).splitlines()
    # What stands as it is: a title, and the names of settings in the table of what differs.
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    assert any("█" in line for line in lines)


def test_cells_of_two_sweeps_are_told_apart(root):
    evidence = read.gather(
        [
            Run(
                str(root),
                folders.run(root, f"20260103-00000{n}-calm-{word}-000", planned={"swept": [["amp", "o2"]]}).name,
            )
            for n, word in enumerate(("lake", "reef"))
        ]
    )
    assert [run.label for run in evidence] == ["calm-lake 000 amp=o2", "calm-reef 000 amp=o2"]


def test_beside_other_runs_a_comparison_is_its_arms(root):
    alone = folders.run(root, "20260102-030405-brave-otter")
    whole = folders.run(root, "20260102-030406-brave-owl", planned={"comparison": {}, "arms": []})
    plan = folders.plan("o0", comparison={"rounds": 1, "steps": 5}, arms=[])
    for number, level in enumerate(("o0", "o2")):
        arm = folders.run(root / "arms-of", f"20260102-03040{number}-some-arm", level)
        (whole / "arms").mkdir(exist_ok=True)
        arm.rename(whole / "arms" / f"{number:02}")
        plan["arms"].append({"arm": f"{number:02}", "swept": [["amp", level]]})
    store.write_json(whole / "plan.json", plan)
    labels = [line.split("  ")[0] for line in terminal(alone, whole).splitlines()[4:7]]
    assert labels == ["brave-otter", "brave-owl amp=o0", "brave-owl amp=o2"]


def test_markdown_shows_hostile_text_as_it_is(root):
    folder = folders.run(root, "20260102-030405-brave-otter")
    plan = folders.plan("o2")
    plan["words"] = ["name=<script>|`x`|*y*"]
    store.write_json(folder / "plan.json", plan)
    said = markdown.render(documented(folder))
    assert "<script>" not in said
    assert r"name=\<script\>\|\`x\`\|\*y\*" in said
    rows = [line for line in said.splitlines() if line.startswith("| brave")]
    assert len(rows) == 3


def test_markdown_has_tables_and_the_command_to_repeat_it(root):
    said = markdown.render(documented(*folders.sweep(root)))
    assert "| run | mode | batch | samples/s |" in said
    assert "```\npython -m launcher amp=o0\n" in said


def test_telemetry_becomes_curves_of_the_run_they_belong_to(root):
    folder = folders.run(root, "20260102-030405-brave-otter")
    (folder / "telemetry").mkdir()
    (folder / "telemetry" / "1-0.host.csv").write_text(
        "time [s], ...\n100, 10, 100, 1024, 4096\n101, 60, 200, 2048, 4096\n102, 90, 300, 1024, 4096\n"
    )
    document = documented(folder)
    (line,) = drawn(document, "Processors of the host").lines
    assert line.points == ((1.0, 50.0), (2.0, 30.0))
    assert drawn(document, "Memory of the host").lines[0].points[0] == (0.0, 3 * 2**20)


def with_two_gpus(root, name):
    """A run of which two GPUs were sampled."""
    folder = folders.run(root, name)
    (folder / "telemetry").mkdir()
    header = "timestamp, index, uuid, memory.used [MiB], utilization.gpu [%]\n"
    rows = [f"2026/11/21 00:00:{s}.000, {gpu}, GPU-{gpu}, 3000, 9{gpu}\n" for s in (10, 20) for gpu in (0, 1)]
    (folder / "telemetry" / "1-0.gpu.csv").write_text(header + "".join(rows))
    return folder


def test_devices_of_one_run_are_told_apart_by_colour_and_of_several_by_dashes(root):
    one, other = (with_two_gpus(root, f"20260102-03040{n}-brave-otter") for n in (1, 2))

    def styles(*made):
        return [(line.label.split()[-1], line.colour) for line in drawn(documented(*made), "GPU utilisation").lines]

    assert styles(one) == [("0", 0), ("1", 1)]
    assert styles(one, other) == [("0", 0), ("1", 8), ("0", 1), ("1", 9)]


def test_steps_that_two_runs_skipped_are_marked_in_two_rows():
    lines = [Line(label=name, colour=n, points=((1.0, 2.0), (9.0, 2.0)), marks=(5.0,)) for n, name in enumerate("ab")]
    shown = charts.curves(Curves(title="Loss scale", x="step", y="scale", lines=tuple(lines), steps=True, unit="log2"))
    places = re.findall(r'x1="([\d.]+)" x2="[\d.]+" y1="([\d.]+)" y2="([\d.]+)" class="line mark', shown)
    assert places == [("500", "288", "300"), ("500", "274", "286")]


def test_a_curve_of_one_point_is_a_dot_and_two_equal_ones_are_both_seen():
    points = [((1.0, 2.0),), ((1.0, 2.0), (3.0, 4.0)), ((1.0, 2.0), (3.0, 4.0))]
    lines = tuple(Line(label="x", colour=n, points=each) for n, each in enumerate(points))
    shown = charts.curves(Curves(title="Loss", x="step", y="loss", lines=lines))
    assert re.findall(r'<polyline[^>]* class="([^"]*)"', shown) == ["line c0 dot", "line c1 wider", "line c2"]


def test_shares_are_drawn_up_to_the_whole(root):
    document = documented(with_two_gpus(root, "20260102-030405-brave-otter"))
    labels = re.findall(r"bottom:([\d.]+)%\">(\d+)<", charts.curves(drawn(document, "GPU utilisation")))
    assert labels[-1] == ("100.00", "100")


@pytest.mark.parametrize("ended", [True, False])
def test_a_loss_that_was_no_number_at_last_is_said_in_its_place(root, ended):
    folder = folders.run(root, "20260102-030405-brave-otter", steps=3)
    rows = folders.lines(folder / "metrics.jsonl")
    rows[3] |= {"loss": None, "nonfinite": ["loss"]}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = json.loads((folder / "result.json").read_text())
    store.write_json(folder / "result.json", {**said, "loss": {"first": 2.3, "last": None}, "nonfinite": ["loss.last"]})
    if not ended:
        (folder / "result.json").unlink()
    table = documented(folder).sections[0].parts[0]
    assert table.rows[0][table.header.index("loss")].text == "not finite"


def test_files_that_cannot_be_read_are_said_and_the_rest_is_told(root):
    folder = folders.run(root, "20260102-030405-brave-otter")
    (folder / "metrics.jsonl").unlink()
    for name in ("metrics.jsonl", "telemetry/1-0.gpu.csv"):
        (folder / name).mkdir(parents=True)
    said = terminal(folder)
    assert "brave-otter: metrics.jsonl can't be read: it is not a regular file" in said
    assert "brave-otter: telemetry: 1-0.gpu.csv can't be read: it is not a regular file" in said
    assert "proved" in said


def test_what_nvidia_smi_said_besides_its_samples_is_told(root):
    folder = folders.run(root, "20260102-030405-brave-otter")
    (folder / "telemetry").mkdir()
    (folder / "telemetry" / "1-0.gpu.csv").write_text("Unable to determine the device handle for GPU0: GPU is lost\n")
    assert "telemetry: Unable to determine the device handle for GPU0: GPU is lost" in terminal(folder)


def many(root, count, steps=2):
    """A sweep of so many runs, each a little better than the one before."""
    swept = ({"swept": [["seed", n]]} for n in range(count))
    results = ({"eval": {"accuracy": 0.5 + n / 1000}} for n in range(count))
    return [
        folders.run(root, f"{folders.SWEEP}-{n:03}", planned=planned, resulting=resulting, steps=steps)
        for n, (planned, resulting) in enumerate(zip(swept, results, strict=True))
    ]


def test_of_a_hundred_runs_all_steps_are_read_and_the_best_eight_stand_out(root):
    made = many(root, 100)
    evidence = read.gather([Run(str(root), each.name) for each in made])
    document = sections.of_runs("many", evidence)
    lines = drawn(document, "Loss").lines
    assert len(lines) == 100
    assert {line.label.split()[0]: line.colour for line in lines if line.colour is not None} == {
        f"{92 + n:03}": n for n in range(8)
    }
    assert document.lead == ("100 runs. In the charts the 8 with the best held-out accuracy have colours.",)
    assert len(page.render(document).encode()) < 2_000_000
    throughput = drawn(document, "Throughput")
    assert (len(throughput.bars), throughput.note) == (24, "the 24 highest of 100")


def test_of_more_runs_than_are_read_the_best_are(root, monkeypatch):
    monkeypatch.setattr(chosen, "READ", 20)
    made = many(root, 30)
    document = sections.of_runs("many", read.gather([Run(str(root), each.name) for each in made]))
    assert sorted(line.label.split()[0] for line in drawn(document, "Loss").lines) == [f"{n:03}" for n in range(10, 30)]
    assert len(document.sections[0].parts[0].rows) == 30
    assert document.lead[0].startswith("30 runs. The steps of 20 of them were read.")


def test_long_runs_are_read_until_there_is_too_much_of_them(root, monkeypatch):
    monkeypatch.setattr(chosen, "BYTES", 10_000)
    monkeypatch.setattr(chosen, "ALWAYS", 3)
    made = many(root, 6, steps=40)
    evidence = read.gather([Run(str(root), each.name) for each in made])
    assert [run.metrics is not None for run in evidence] == [False, False, False, True, True, True]


def test_runs_without_an_accuracy_are_ordered_by_their_loss_and_those_without_either_come_last():
    results = [ResultRecord(loss=Losses(last=loss)) for loss in (2.0, None, 1.0, None)]
    assert chosen.best_first(results) == ([2, 0, 1, 3], "last loss")


def test_runs_of_different_data_have_no_ratio_and_that_is_said(root):
    made = []
    for number, name in enumerate(("digits", "synthetic")):
        settings = {**folders.plan("o2")["settings"], "data": {"name": name}}
        made.append(folders.run(root, f"20260102-03040{number}-brave-otter", planned={"settings": settings}))
    said = terminal(*made)
    assert "No ratios: these runs are of different data sets (digits, synthetic)." in said
    assert "ratio" not in said.split("\n")[3] and "x)" not in said


@pytest.mark.parametrize("value", [None, "text", [1], {"mean": "fast"}])
def test_a_result_of_another_shape_is_a_run_without_that_figure(root, value):
    folder = folders.run(root, "20260102-030405-brave-otter")
    said = json.loads((folder / "result.json").read_text())
    said["throughput"] = value
    store.write_json(folder / "result.json", said)
    (folder / "metrics.jsonl").unlink()
    assert "samples/s" not in terminal(folder)
