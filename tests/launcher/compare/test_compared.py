"""What a comparison's report says, from folders as a comparison leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.compare import compared
from launcher.plan.model import Published, PublishedArm
from launcher.report import plain
from launcher.report.document import Table
from launcher.runs import store
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from recipes.typed import plain as as_plain
from tests.launcher.report import folders

from ..run_folders import metrics, result

STEPS = 10


def arm(root: Path, number: int, level: str, factors: list[float], *, loss: float = 2.3, **more) -> dict:
    """An arm's folder: a round for each factor, with so many times 1,000 samples a second."""
    folder = root / "arms" / f"{number:02}"
    folder.mkdir(parents=True)
    plan = folders.plan(level, swept=[["amp", level]], arm=f"{number:02}", **more.pop("planned", {}))
    store.write_json(folder / "plan.json", plan)
    written = []
    for index, factor in enumerate(factors):
        for row in folders.rows(STEPS, rate=1000 * factor)[1 : STEPS + 1]:
            step = index * STEPS + row["step"]
            written.append({**row, "step": step, "loss": loss - step / 100, **more.get("row", {})})
    metrics(folder, written)
    if more.get("finished", True):
        status = {"state": "done", "attempt": 1, "exit_code": 0, "started": "2026-01-02T03:04:05Z", "ended": None}
        store.write_json(folder / "status.json", status)
        said = result(attempts=1, mechanism=plan["mechanism"], digests={"data": more.get("data", "same")})
        store.write_json(folder / "result.json", {**said, "loss_scale": {"final": None, "skipped_steps": 0}})
    return plan


def whole(root: Path, *arms: dict, rounds: int = 5, **more) -> dict:
    how = {"rounds": rounds, "steps": STEPS, "cool_down": 0, "tolerance": 0.02}
    return {**folders.plan("o0"), "comparison": how, "arms": list(arms), **more}


def document(root: Path, plan: dict, state: str = "done"):
    store.write_json(root / "provenance.json", {"command": ["python"]})
    return compared.document("a comparison", root, State(state, attempt=1), decode(PlanRecord, plan)[0])


def published(root: Path, *rows: PublishedArm, factors=None, **more):
    """The section of published figures, its table, and the table's columns as texts and as values; of two arms."""
    source = Published(source="a page", hardware="a V100", arms=rows, **more)
    if not (root / "arms").exists():
        for number, (level, rounds) in enumerate(zip(("o0", "o2"), factors or (NOISE, NOISE), strict=True)):
            arm(root, number, level, rounds)
    arms = [json.loads((root / "arms" / number / "plan.json").read_text()) for number in ("00", "01")]
    sections = document(root, whole(root, *arms, published=as_plain(source))).sections
    (section,) = [each for each in sections if each.title == "Comparison with published figures"]
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    columns = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    texts = {name: [cell.text for cell in cells] for name, cells in columns.items()}
    return section, texts, {name: [cell.value for cell in cells] for name, cells in columns.items()}


def lead(root: Path, plan: dict) -> list[str]:
    return list(document(root, plan).lead)


NOISE = [1.00, 1.02, 0.98, 1.01, 0.99]
TWICE = [2 * factor for factor in (1.01, 1.00, 1.00, 1.02, 0.97)]
SLOW = [0.5 * factor for factor in NOISE[::-1]]
STEADY = [1.0001, 1.0002, 0.9999, 1.0, 0.9998]
NOT_FINITE = {"row": {"loss": None, "nonfinite": ["loss"]}}


VERDICTS = {
    "a gain, its interval and its cost": (
        [("o0", NOISE), ("o2", TWICE)],
        "amp=o2 gains the most: 2.00 times the throughput of amp=o0, its loss within 2.0%.",
        "amp=o2 (half_model_fp32_masters in torch): 2.00 times the throughput of amp=o0 (95% interval 1.9"
        "|5 rounds|loss at the same steps within 2.0% (+0.00%)",
    ),
    "noise": (
        [("o0", NOISE), ("o1", NOISE[::-1])],
        "No difference in speed beyond noise between amp=o0 and amp=o1.",
        "|no difference in speed from amp=o0 beyond noise",
    ),
    "a small difference, with the digits that show it": (
        [("o0", STEADY), ("o1", [1.004 * factor for factor in reversed(STEADY)])],
        "amp=o1 gains the most: 1.004 times the throughput of amp=o0",
        "|1.004 times the throughput of amp=o0 (95% interval 1.00",
    ),
    "slower": ([("o0", NOISE), ("o1", SLOW)], "amp=o1 is slower: 0.50"),
    "one slower, one alike": (
        [("o0", NOISE), ("o1", SLOW), ("o2", NOISE[::-1])],
        "Nothing was faster than amp=o0 beyond noise.",
    ),
    "a failed arm is not among those alike": (
        [("o0", NOISE), ("o1", NOISE[::-1]), ("o2", NOISE[:1], {"failed": "out of memory"})],
        "No difference in speed beyond noise between amp=o0 and amp=o1.",
    ),
    "three rounds": (
        [("o0", NOISE[:3]), ("o2", TWICE[:3])],
        "Too few rounds to tell a difference from noise",
        "|times the throughput over 3 rounds, too few for an interval",
    ),
    "a gain that costs the loss": (
        [("o0", NOISE), ("o3", TWICE, {"loss": 2.9})],
        "Nothing was faster than amp=o0 beyond noise at no cost to the loss.",
        "|loss at the same steps +32.5%, beyond the tolerance of 2.0%",
    ),
    "a lower loss is not called the same": (
        [("o0", NOISE), ("o2", TWICE, {"loss": 1.9})],
        "|times the throughput of amp=o0, its loss no worse.",
    ),
    "a loss that is not finite": (
        [("o0", NOISE), ("o3", TWICE, NOT_FINITE)],
        "Nothing was faster than amp=o0 beyond noise at no cost to the loss.",
        "|its loss is not finite from step 1 on",
    ),
    "a failure gains nothing": (
        [("o0", NOISE), ("o3", TWICE, {**NOT_FINITE, "failed": "exit code 1"})],
        "No arm except the control, amp=o0, was measured to its end.",
    ),
    "a control without a loss": (
        [("o3", NOISE, NOT_FINITE), ("o0", NOISE)],
        "",
        "amp=o3 (|its loss is not finite from step 1 on. No loss can be compared with it.",
    ),
    "other data": (
        [("o0", NOISE), ("o2", NOISE, {"data": "other"})],
        "",
        "|losses are not compared: it was trained on other data (the digests differ)",
    ),
}
"""The arms, and the first sentences: how each begins and, after a |, what else is in it."""


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict(tmp_path, case):
    (arms, *sentences), plans = VERDICTS[case], []
    for number, (level, factors, *more) in enumerate(arms):
        settings = dict(*more)
        failed = settings.pop("failed", None)
        plans.append(arm(tmp_path, number, level, factors, finished=failed is None, **settings))
        if failed:
            (tmp_path / f"arms/{number:02}/failed").write_text(f"{failed}\n")
    said = lead(tmp_path, whole(tmp_path, *plans))
    assert len(said) >= len(sentences)
    for sentence, expected in zip(said, sentences, strict=False):
        beginning, *parts = expected.split("|")
        assert sentence.startswith(beginning) and [part for part in parts if part not in sentence] == []


def test_a_terminal_shows_the_sentences_between_words_and_the_table_without_single_rounds(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", TWICE))
    wide, narrow = (list(plain.lines(document(tmp_path, plan), width)) for width in (0, 50))
    row = next(line.split() for line in wide if line.startswith("amp=o2  half"))
    assert row[4] == "2.00"
    assert "ROUNDS" not in wide, "single rounds are for the page"
    lead = narrow[: narrow.index("")]
    assert max(map(len, lead)) <= 50
    assert " ".join(lead) == " ".join(wide[: wide.index("")])


def test_peak_memory_is_that_of_the_block_that_took_most(tmp_path):
    first = arm(tmp_path, 0, "o0", NOISE, row={"memory_bytes": 7 * 2**30})
    plan = whole(tmp_path, first, arm(tmp_path, 1, "o1", NOISE[::-1]))
    said = "\n".join(plain.lines(document(tmp_path, plan)))
    assert "7.0 GiB" in next(line for line in said.splitlines() if line.startswith("amp=o0"))


def test_a_loss_that_is_now_above_and_now_below_is_noise(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", TWICE))
    path = tmp_path / "arms/01/metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["loss"] *= 1.05 if (row["step"] - 1) // STEPS % 2 == 0 else 0.96
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = lead(tmp_path, plan)
    assert first.endswith("times the throughput of amp=o0, its loss no worse beyond noise.")
    assert "+5.0% in the last round, which is noise: over all rounds" in second


def test_an_arm_that_ran_out_of_memory_is_a_row(tmp_path):
    plan = whole(
        tmp_path,
        arm(tmp_path, 0, "o0", NOISE),
        arm(tmp_path, 1, "o1", [1.0], finished=False),
        arm(tmp_path, 2, "o2", NOISE[::-1]),
    )
    (tmp_path / "arms/01/failed").write_text("out of memory\n")
    said = lead(tmp_path, plan)
    assert "amp=o1 (autocast in torch): it ran out of memory, after 10 steps." in said
    (row,) = [row for row in document(tmp_path, plan).sections[0].parts[0].rows if row[0].text == "amp=o1"]
    assert row[-1].text == "failed: it ran out of memory (no result, 10 steps)"


def test_the_last_words_of_a_comparison_have_those_of_an_arm_that_failed(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o1", [], finished=False))
    store.write_json(tmp_path / "plan.json", plan)
    log = tmp_path / "arms/01/attempts/1/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nValueError: no such operation\n")
    (tmp_path / "arms/01/failed").write_text("exit code 1\n")
    said = compared.last_words(tmp_path, State("failed", "exit code 1", attempt=1), 0.0)
    assert said[said.index(f"the end of {log}:") + 2] == "  ValueError: no such operation"
    (tmp_path / "arms/01/failed").write_text("out of memory\n")
    assert f"the end of {log}:" not in compared.last_words(tmp_path, State("done", attempt=1), 0.0)


def test_a_long_reason_is_told_by_its_first_clause_and_by_no_log_that_has_no_more(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o1", NOISE))
    store.write_json(tmp_path / "plan.json", plan)
    why = f"what ran was not amp=o1: step 1: 0.0% of forward ran in bfloat16; {'in other dtypes; ' * 20}"
    folder = tmp_path / "arms/01"
    store.write_json(folder / "status.json", {"state": "failed", "attempt": 1, "exit_code": 1})
    store.write_json(
        folder / "result.json", {**store.read_json(folder / "result.json"), "status": "failed", "reason": why}
    )
    (folder / "failed").write_text("exit code 1\n")
    log = folder / "attempts/1/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"mnist: {why}\n")
    said = compared.last_words(tmp_path, State("failed", "exit code 1", attempt=1), 0.0)
    assert any(line.startswith("amp=o1 (autocast in torch): what ran was not amp=o1: step 1: 0.0%") for line in said)
    assert not any("in other dtypes" in line for line in said)
    log.write_text(f"Traceback\nmnist: {why}\n")
    assert "  Traceback" in compared.last_words(tmp_path, State("failed", "exit code 1", attempt=1), 0.0)


def test_where_the_control_failed_that_is_said_first(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", [], finished=False), arm(tmp_path, 1, "o2", NOISE))
    (tmp_path / "arms/00/failed").write_text("out of memory\n")
    said = lead(tmp_path, plan)
    assert said[0] == "No arm except the control, amp=o0, was measured."
    assert said[1].endswith("it ran out of memory. Nothing can be compared with it.")
    arm(tmp_path / "later", 0, "o0", NOISE[:2], finished=False)
    (tmp_path / "arms/00/metrics.jsonl").write_bytes((tmp_path / "later/arms/00/metrics.jsonl").read_bytes())
    said = lead(tmp_path, plan)
    assert said[0] == "No arm except the control, amp=o0, was measured to its end."
    assert said[1].endswith("it ran out of memory, after 20 steps. Only its complete rounds can be compared with it.")


def test_arms_of_different_frameworks_are_told_apart_and_their_losses_not_compared(tmp_path):
    other = {"framework": "tensorflow", "mechanism": "grappler"}
    plan = whole(tmp_path, arm(tmp_path, 0, "o1", NOISE), arm(tmp_path, 1, "o1", NOISE, planned=other))
    store.write_json(
        tmp_path / "arms/01/result.json", {**result(attempts=1, mechanism="grappler"), "digests": {"data": "same"}}
    )
    said = lead(tmp_path, plan)[1]
    assert "(grappler in tensorflow)" in said
    assert "losses are not compared: another framework starts from other weights" in said


def test_arms_of_other_batches_have_no_loss_gap_and_say_what_each_had_seen(tmp_path):
    small = {"settings": {"amp": {"level": "o1"}, "batch": 64}}
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o1", TWICE, planned=small, data="other"))
    path = tmp_path / "arms/01/result.json"
    said = store.read_json(path)
    store.write_json(path, {**said, "effective": {**said["effective"], "batch": 64}, "eval": {"accuracy": 0.5}})
    first, second = lead(tmp_path, plan)
    assert first == "amp=o1 gains the most: 2.00 times the throughput of amp=o0; their losses are not compared."
    assert "losses are not compared: after the same steps it had seen other samples (batch 64 against 128)" in second
    assert "accuracy 0.5000 after 3,200 samples against 0.9722 after 6,400 samples" in second
    assert "loss gap" not in document(tmp_path, plan).sections[0].parts[0].header


def test_a_mode_that_was_not_proved_is_said(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o1", NOISE))
    path = tmp_path / "arms/01/result.json"
    store.write_json(path, {**store.read_json(path), "observed": {"verdict": "unknown", "why": "unseen"}})
    assert lead(tmp_path, plan)[1].endswith("; its mode was not proved (unknown).")


def test_half_of_a_comparison_is_reported_as_far_as_it_went(tmp_path):
    plan = whole(
        tmp_path, arm(tmp_path, 0, "o0", NOISE[:3], finished=False), arm(tmp_path, 1, "o2", NOISE[:2], finished=False)
    )
    said = "\n".join(plain.lines(document(tmp_path, plan, "running")))
    assert "over 2 rounds" in said
    assert "(no result, 20 steps)" in said


def test_what_of_an_arm_cannot_be_read_is_left_out_and_told_on_a_terminal(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", NOISE))
    (tmp_path / "arms/00/result.json").write_text('{"half')
    path = tmp_path / "arms/01/metrics.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows[:14], "garbage\n", *rows[15:]])[:-20])
    said = list(plain.lines(document(tmp_path, plan)))
    told = said[said.index("WHAT COULD NOT BE READ") + 1 :]
    assert told[0].startswith("amp=o0: result.json can't be read")
    assert told[1:] == [
        "amp=o2: metrics.jsonl: line 15 can't be read and left out",
        "amp=o2: metrics.jsonl: its last line is half written and left out",
    ]
    assert "over 3 rounds" in said[2], "the rounds that are whole count"


def test_a_block_that_was_broken_off_is_held_against_nothing(tmp_path):
    plan = whole(tmp_path, arm(tmp_path, 0, "o0", NOISE), arm(tmp_path, 1, "o2", NOISE[:2]))
    path = tmp_path / "arms/01/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    assert "over 1 round, too few" in lead(tmp_path, plan)[1]


def test_published_figures_stand_beside_ours_and_only_ratios_are_set_against_each_other(tmp_path):
    rows = PublishedArm(rate=393.49, memory_gb=25.43), PublishedArm(rate=1308.37, memory_gb=19.28)
    _, shown, _ = published(tmp_path, *rows, factors=(NOISE, [2 * e for e in NOISE[::-1]]))
    assert shown["published ratio"] == ["1.00", "3.33"]
    assert shown["our ratio"] == ["1.00", "2.00"]
    assert shown["published samples/s"] == ["393.49", "1308.37"]
    assert shown["published GB"] == ["25.43", "19.28"]
    assert shown["our GB"] == ["0.5369", "0.5369"]
    assert "published loss" not in shown


def test_a_published_loss_stands_beside_ours_of_the_same_step(tmp_path):
    rows = PublishedArm(loss=0.6486028, loss_step=20), PublishedArm(loss=0.66, loss_step=10_000)
    section, shown, _ = published(tmp_path, *rows, note="Of one seed.")
    assert section.parts[1].text == "Of one seed."
    assert shown["published loss"] == ["0.6486028", "0.66"]
    assert shown["our loss"] == ["2.1", "-"]  # 2.3 - 20 / 100; there is no step 10,000


def test_published_times_of_steps_stand_beside_times_of_our_steps(tmp_path):
    _, _, column = published(tmp_path, PublishedArm(step_seconds=0.5), PublishedArm(), factors=([1.0], [2.0]))
    assert column["published s/step"] == [0.5, None]
    assert column["our s/step"] == pytest.approx([128 / each for each in column["our samples/s"]])


def test_published_epochs_and_test_accuracies_stand_beside_ours_of_the_same_images(tmp_path):
    for number, level in enumerate(("o0", "o2")):
        arm(tmp_path, number, level, [1.0])
    path = tmp_path / "arms/00/result.json"
    store.write_json(path, {**store.read_json(path), "eval": {"accuracy": 0.9, "test_accuracy": 0.5}})
    rows = PublishedArm(epoch_seconds=159, accuracy=0.5242), PublishedArm()
    _, _, column = published(tmp_path, *rows, epoch_samples=40_000)
    assert column["our s/epoch"] == pytest.approx([40_000 / each for each in column["our samples/s"]])
    assert column["our accuracy"][0] == 0.5


@pytest.mark.parametrize(
    ("control", "other", "expected"),
    [
        (PublishedArm(step_seconds=0.529), PublishedArm(step_seconds=0.102), 5.186),
        (PublishedArm(epoch_seconds=159), PublishedArm(epoch_seconds=67), 2.373),
        (PublishedArm(), PublishedArm(rate=3.0), None),
    ],
)
def test_published_times_are_turned_into_gains(tmp_path, control, other, expected):
    _, _, column = published(tmp_path, control, other)
    assert ("published ratio" in column) is bool(expected)
    if expected:
        assert column["published ratio"][1] == pytest.approx(expected, abs=5e-4)


def script(root: Path, number: int, level: str, factors: list[float], *, counted: str = "SGD", **more) -> dict:
    """An arm's folder of a user's script: a block for each factor, with so many times 10 steps a second."""
    passed = {"file": "script/train.py", "arguments": more.get("arguments", [])}
    plan = arm(root, number, level, [], planned={"script": passed})
    folder = root / "arms" / f"{number:02}"
    rows = []
    for index, factor in enumerate(factors):
        for step in range(1, more.get("steps", STEPS) + 1):
            loss = more["losses"][index] if "losses" in more and step % 2 else None
            row = {"seconds": 0.1 / factor, "steps_per_second": 10 * factor, "samples_per_second": None, "loss": loss}
            rows.append({**row, "step": index * STEPS + step, "timed": step > 2, "skipped": False})
        rows.append({"event": "end", "block": index, "step": index * STEPS + more.get("steps", STEPS)})
    metrics(folder, rows)
    said = result(attempts=1, mechanism=plan["mechanism"], loss={"first": None, "last": None}, eval={}, loss_scale={})
    throughput = {"unit": "steps/s", "mean": 10.0, "p10": 9.0, "p90": 11.0, "counted": counted}
    said = {**said, "effective": {}, "throughput": throughput, "wall_seconds": 8.0}
    store.write_json(folder / "result.json", said)
    return plan


def test_step_rates_of_scripts_are_compared_and_uncontrolled_differences_named(tmp_path):
    plan = whole(tmp_path, script(tmp_path, 0, "o0", NOISE), script(tmp_path, 1, "o1", TWICE))
    first, second, third = lead(tmp_path, plan)
    assert first == "amp=o1 gains the most: 2.00 times the step rate of amp=o0."
    assert "2.00 times the step rate of amp=o0 (95% interval 1.9" in second and "loss" not in second
    assert third.startswith("Seed and order of the data are the script's own, and may differ from block to block.")
    assert "Losses are not compared, since the script's are not known; job.log(step, loss=...) records them." in third
    assert third.endswith(" With its start, the last block took 8s of amp=o0, 8s of amp=o1.")
    rounds = next(each for each in document(tmp_path, plan).sections if each.title == "Rounds")
    assert "Arms begin with the same weights" not in rounds.parts[0].text
    assert rounds.parts[1].header == ("round", "amp=o0, steps/s", "amp=o1, steps/s")


def test_arms_whose_arguments_differ_may_do_other_work_in_a_step(tmp_path):
    other = script(tmp_path, 1, "o0", TWICE, arguments=["--batch", "64"])
    plan = whole(tmp_path, script(tmp_path, 0, "o0", NOISE), other)
    assert "; with other arguments a step may be other work. Losses" in lead(tmp_path, plan)[2]


def test_the_loss_of_a_script_is_compared_over_all_its_blocks(tmp_path):
    control = script(tmp_path, 0, "o0", NOISE, losses=[1.0] * 5)
    plan = whole(tmp_path, control, script(tmp_path, 1, "o1", TWICE, losses=[1.3, 0.8, 1.2, 0.9, 1.05]))
    _, second, third = lead(tmp_path, plan)
    assert "loss at the same steps +5.0%, which is noise: over all rounds" in second
    assert "may differ from block to block: a difference of the losses can be chance. With" in third


def test_rates_that_are_counted_differently_have_no_ratio(tmp_path):
    other = script(tmp_path, 1, "o1", TWICE, counted="AdamW, the first of 2 optimizers")
    plan = whole(tmp_path, script(tmp_path, 0, "o0", NOISE), other)
    first, second = lead(tmp_path, plan)
    assert first == "The speed of amp=o1 can't be compared with that of the control, amp=o0."
    told = "its speed and the control's can't be compared: they are of different counts (AdamW, the first of 2 "
    assert told in second
    said = "\n".join(plain.lines(document(tmp_path, plan)))
    assert "2.00" not in said.partition("COMPARISON")[2]


def test_a_script_that_ends_before_its_block_counts_and_one_that_was_broken_off_does_not(tmp_path):
    plan = whole(tmp_path, script(tmp_path, 0, "o0", NOISE, steps=7), script(tmp_path, 1, "o1", TWICE))
    assert "2.00 times the step rate of amp=o0 (95% interval" in lead(tmp_path, plan)[1]
    rounds = next(each for each in document(tmp_path, plan).sections if each.title == "Rounds")
    assert "Of amp=o0, 5 ended by themselves before that, after 7 steps or more." in rounds.parts[0].text
    rows = (tmp_path / "arms/00/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "arms/00/metrics.jsonl").write_text("".join(rows[:-1]))
    assert "4 rounds, too few for an interval" in lead(tmp_path, plan)[1]
