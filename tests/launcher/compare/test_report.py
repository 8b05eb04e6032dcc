"""The report of a comparison, from folders as a comparison leaves them."""

from __future__ import annotations

import pytest

from launcher.compare import report
from launcher.compare.last_words import last_words as ended
from launcher.report import plain
from launcher.report.document import Bars, Prose, Table
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State

from .. import run_folders
from .folders import NOISE, SLOW, STEPS, TWICE, change, concluded, document, plan_of, rewrite, script

STEADY = [1.0001, 1.0002, 0.9999, 1.0, 0.9998]
LOUD = [0.7, 1.4, 1.0, 1.2, 0.8]
NOT_FINITE = {"row": {"loss": None, "nonfinite": ["loss"]}}


VERDICTS = {
    "a gain, its interval and its cost": (
        [("o0", NOISE), ("o2", TWICE)],
        "amp=o2 gains the most: 2.00 times the throughput of amp=o0, its loss within 2.0%.",
    ),
    "noise": (
        [("o0", NOISE), ("o1", NOISE[::-1])],
        "No difference in speed beyond noise between amp=o0 and amp=o1.",
    ),
    "a small difference, with the digits that show it": (
        [("o0", STEADY), ("o1", [1.004 * factor for factor in reversed(STEADY)])],
        "amp=o1 gains the most: 1.004 times the throughput of amp=o0",
    ),
    "much noise": (
        [("o0", NOISE), ("o1", LOUD)],
        "Too noisy to tell: no difference in speed beyond noise between amp=o0 and amp=o1.",
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
    ),
    "a gain that costs the loss": (
        [("o0", NOISE), ("o3", TWICE, {"loss": 2.9})],
        "Nothing was faster than amp=o0 beyond noise at no cost to the loss.",
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


@pytest.mark.parametrize(("arms", "sentences"), [(arms, rest) for arms, *rest in VERDICTS.values()], ids=VERDICTS)
def test_the_verdict(tmp_path, arms, sentences):
    shown = concluded(tmp_path, plan_of(tmp_path, *arms))
    assert len(shown) >= len(sentences)
    for sentence, expected in zip(shown, sentences, strict=False):
        beginning, *parts = expected.split("|")
        assert sentence.startswith(beginning) and [part for part in parts if part not in sentence] == []


def terminal(root, plan, width=0, state="done"):
    return list(plain.lines(document(root, plan, state), width))


def table(root, plan):
    """The table of the arms."""
    return next(part for part in document(root, plan).sections[0].parts if isinstance(part, Table))


def cells(root, plan, name):
    """The texts of one of its columns."""
    arms = table(root, plan)
    return [row[arms.header.index(name)].text for row in arms.rows]


def chart(root, plan):
    """The bars of the arms' ratios, by arm, and the note below them."""
    (part,) = [part for part in document(root, plan).sections[0].parts if isinstance(part, Bars)]
    return {bar.label: bar for bar in part.bars}, part.note


def test_a_report_opens_with_one_sentence_however_many_arms_there_are(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", SLOW), ("o2", TWICE), ("o3", TWICE))
    (sentence,) = document(tmp_path, plan).lead
    assert sentence == concluded(tmp_path, plan)[0]


def test_the_chart_has_ratios_with_their_intervals_and_says_what_is_too_noisy_and_what_would_help(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", LOUD), ("o2", TWICE), ("o3", NOISE[::-1]))
    bars, note = chart(tmp_path, plan)
    assert (bars["amp=o0"].value, bars["amp=o0"].text[:12]) == (1.0, "the control,")
    assert bars["amp=o1"].text.endswith(", too noisy to tell") and bars["amp=o1"].colour is None
    low, high = bars["amp=o2"].interval
    assert low < bars["amp=o2"].value < high
    assert bars["amp=o2"].text == f"2.00 times ({low:.2f} to {high:.2f})" and bars["amp=o2"].colour == 2
    assert bars["amp=o3"].text == "1.00 times (0.99 to 1.01), no difference"
    assert "compare.rounds=20 would" in note and "a machine that does nothing else" in note


def test_where_nothing_is_too_noisy_no_remedy_is_offered(tmp_path):
    _, note = chart(tmp_path, plan_of(tmp_path, ("o0", NOISE), ("o2", TWICE)))
    assert note == "In parentheses: 95% intervals."


def test_too_few_rounds_have_no_interval_and_the_chart_says_how_many_it_needs(tmp_path):
    bars, note = chart(tmp_path, plan_of(tmp_path, ("o0", NOISE[:1]), ("o2", TWICE[:1])))
    assert bars["amp=o2"].text.endswith(" over 1 round, too few to tell") and bars["amp=o2"].interval is None
    assert note == "An interval needs 5 rounds: compare.rounds=5."


def test_a_reason_that_several_arms_share_is_said_once(tmp_path):
    small = {"planned": {"settings": {"amp": {"level": "o1"}, "batch": 64}}}
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", TWICE, small), ("o2", TWICE, small))
    for arm in (1, 2):
        change(tmp_path, arm, effective={"amp": "o2", "dtype": "bfloat16", "batch": 64})
    remarks = [part.text for part in document(tmp_path, plan).sections[0].parts if isinstance(part, Prose)]
    assert remarks == [
        "amp=o1 and amp=o2: losses are not compared: after the same steps it had seen other samples (batch 64 against "
        "128)."
    ]


def test_a_terminal_shows_the_sentence_between_words_and_the_table_without_single_rounds(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE, {"row": {"memory_bytes": 7 * 2**30}}), ("o2", TWICE))
    wide, narrow = (terminal(tmp_path, plan, width) for width in (0, 50))
    control, other = (next(line for line in wide if line.startswith(arm)) for arm in ("amp=o0    128", "amp=o2    128"))
    assert "7.0 GiB" in control, "the peak memory of the block that took most"
    assert other.split()[3] == "2.00"
    assert "ROUNDS" not in wide, "single rounds are for the page"
    sentences = narrow[: narrow.index("")]
    assert max(map(len, sentences)) <= 50
    assert " ".join(sentences) == " ".join(wide[: wide.index("")])


def test_a_loss_that_is_now_above_and_now_below_is_noise(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o2", TWICE))

    def uneven(row):
        return {**row, "loss": row["loss"] * (1.05 if (row["step"] - 1) // STEPS % 2 == 0 else 0.96)}

    rewrite(tmp_path / "arms/01/metrics.jsonl", uneven)
    (sentence,) = concluded(tmp_path, plan)
    assert sentence.endswith("times the throughput of amp=o0, its loss no worse beyond noise.")
    assert cells(tmp_path, plan, "loss gap") == ["-", "+5.00%, noise"]
    arms = table(tmp_path, plan)
    assert {"ratio", "95% interval", "loss gap"} <= {arms.header[column] for column in arms.numbers}


def test_an_arm_that_ran_out_of_memory_is_a_row(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", [1.0], {"failed": "out of memory"}), ("o2", NOISE[::-1]))
    (row,) = [row for row in table(tmp_path, plan).rows if row[0].text == "amp=o1"]
    assert row[-1].text == "failed: it ran out of memory (no result, 10 steps)"


def test_bars_have_the_ratios_of_the_table_and_an_arm_that_failed_or_had_no_round_has_none(tmp_path):
    """The first three rounds are slower than the others: means over different rounds would say 0.57."""
    failed = {"failed": "out of memory"}
    arms = [("o0", [1, 1, 1, 4, 4]), ("o1", [1, 1, 1]), ("o2", []), ("o3", [2, 2, 2], failed)]
    plan = plan_of(tmp_path, *arms)
    change(tmp_path, 2, throughput={"unit": "samples/s", "mean": 70.0, "p10": 60.0, "p90": 80.0})
    bars, _ = chart(tmp_path, plan)
    assert [bar.value for bar in bars.values()] == [1.0, pytest.approx(1.0), None, None]
    assert bars["amp=o3"].text == "failed: it ran out of memory (no result, 30 steps)"


def last_words(root, state="failed"):
    return ended({root: State(state, "exit code 1" if state == "failed" else "", attempt=1)})


def test_the_last_words_of_a_comparison_have_the_log_of_an_arm_that_failed(tmp_path):
    plan_of(tmp_path, ("o0", NOISE), ("o1", [], {"failed": "exit code 1"}))
    log = tmp_path / "arms/01/attempts/1/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nValueError: no such operation\n")
    lines = last_words(tmp_path)
    assert lines[lines.index(f"the end of {log}:") + 2] == "  ValueError: no such operation"
    (tmp_path / "arms/01/failed").write_text("out of memory\n")
    assert f"the end of {log}:" not in last_words(tmp_path, "done")
    assert last_words(tmp_path, "done")[-1].startswith("with charts: ")
    alone = run_folders.finished(tmp_path)
    assert not ended({alone: State("done", attempt=1)})[-1].startswith("with charts: ")


def test_a_long_reason_is_cut_to_its_first_clause_and_no_log_repeats_it(tmp_path):
    plan_of(tmp_path, ("o0", NOISE), ("o1", NOISE))
    why = f"what ran was not amp=o1: step 1: 0.0% of forward ran in bfloat16; {'in other dtypes; ' * 20}"
    change(tmp_path, 1, "status.json", state="failed", exit_code=1)
    change(tmp_path, 1, status="failed", reason=why)
    (tmp_path / "arms/01/failed").write_text("exit code 1\n")
    log = tmp_path / "arms/01/attempts/1/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"mnist: {why}\n")
    lines = last_words(tmp_path)
    assert any("failed: what ran was not amp=o1: step 1: 0.0%" in line for line in lines)
    assert not any("in other dtypes" in line for line in lines)
    log.write_text(f"Traceback\nmnist: {why}\n")
    assert "  Traceback" in last_words(tmp_path)


@pytest.mark.parametrize(
    ("rounds", "first", "second"),
    [
        ([], "was measured.", "it ran out of memory. Nothing can be compared with it."),
        (
            NOISE[:2],
            "was measured to its end.",
            "it ran out of memory, after 20 steps. Only its complete rounds can be compared with it.",
        ),
    ],
)
def test_a_control_that_failed_is_named_first(tmp_path, rounds, first, second):
    sentences = concluded(tmp_path, plan_of(tmp_path, ("o0", rounds, {"failed": "out of memory"}), ("o2", NOISE)))
    assert sentences[0] == f"No arm except the control, amp=o0, {first}"
    assert sentences[1].endswith(second)


def test_losses_of_arms_in_different_frameworks_are_not_compared(tmp_path):
    other = {"framework": "tensorflow", "mechanism": "grappler"}
    sentence = concluded(tmp_path, plan_of(tmp_path, ("o1", NOISE), ("o1", NOISE, {"planned": other})))[1]
    assert "losses are not compared: another framework starts from other weights" in sentence


def test_arms_of_other_batches_have_no_loss_gap(tmp_path):
    small = {"settings": {"amp": {"level": "o1"}, "batch": 64}}
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", TWICE, {"planned": small, "data": "other"}))
    change(tmp_path, 1, effective={"amp": "o2", "dtype": "bfloat16", "batch": 64})
    first, second = concluded(tmp_path, plan)
    assert first == "amp=o1 gains the most: 2.00 times the throughput of amp=o0; their losses are not compared."
    assert "losses are not compared: after the same steps it had seen other samples (batch 64 against 128)" in second
    assert "loss gap" not in table(tmp_path, plan).header


@pytest.mark.parametrize(
    ("arm", "first", "second"),
    [
        (1, "Nothing is concluded: the mode of amp=o1 is unknown.", "since its mode is unknown."),
        (
            0,
            "Nothing is concluded: the mode of the control, amp=o0, is unknown.",
            "since the control's mode is unknown.",
        ),
    ],
)
def test_nothing_is_concluded_from_an_arm_whose_mode_is_unknown(tmp_path, arm, first, second):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", TWICE))
    change(tmp_path, arm, observed={"verdict": "unknown", "why": "unseen"})
    text = concluded(tmp_path, plan)
    assert text[0] == first
    assert text[1].endswith(f": nothing is concluded, {second}")


def test_an_emulated_mode_is_named(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o1", NOISE))
    change(tmp_path, 1, observed={"verdict": "emulated", "why": "wider"})
    assert cells(tmp_path, plan, "proof") == ["proved", "emulated"]


def test_half_of_a_comparison_is_reported_as_far_as_it_went(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE[:3], {"finished": False}), ("o2", NOISE[:2], {"finished": False}))
    text = "\n".join(terminal(tmp_path, plan, state="running"))
    assert "over 2 rounds" in text and "(no result, 20 steps)" in text


def test_records_of_an_arm_that_cannot_be_read_are_left_out_and_named(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o2", NOISE))
    (tmp_path / "arms/00/result.json").write_text('{"half')
    path = tmp_path / "arms/01/metrics.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows[:14], "garbage\n", *rows[15:]])[:-20])
    lines = terminal(tmp_path, plan)
    first, *others = lines[lines.index("WHAT COULD NOT BE READ") + 1 :]
    assert first.startswith("amp=o0: result.json can't be read")
    assert others == [
        "amp=o2: metrics.jsonl: line 15 can't be read and left out",
        "amp=o2: metrics.jsonl: its last line is half written and left out",
    ]
    assert any("over 3 rounds" in line for line in lines), "the complete rounds count"


def scripts(root, *arms):
    return plan_of(root, *arms, create=script)


def rounds_of(root, plan):
    """The parts of the section on the rounds."""
    return next(section.parts for section in document(root, plan).sections if section.title == "Rounds")


def test_step_rates_of_scripts_are_compared_and_uncontrolled_differences_named(tmp_path):
    plan = scripts(tmp_path, ("o0", NOISE), ("o1", TWICE))
    first, second = concluded(tmp_path, plan)
    assert first == "amp=o1 gains the most: 2.00 times the step rate of amp=o0."
    assert second.startswith("Seed and order of the data are the script's own, and may differ from block to block.")
    assert "Losses are not compared, since the script's are not known; job.log(step, loss=...) records them." in second
    assert second.endswith(" With its start, the last block took 8s of amp=o0, 8s of amp=o1.")
    method, table = rounds_of(tmp_path, plan)
    assert "Arms begin with the same weights" not in method.text
    assert table.header == ("round", "amp=o0", "amp=o1") and method.text.endswith(" The table is in steps/s.")


def test_the_section_on_rounds_says_how_they_were_measured_and_in_what(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o2", TWICE[:3]))
    method, table = rounds_of(tmp_path, plan)
    assert method.text.startswith("5 rounds of one block of 10 steps for each arm, every other round backwards, 0 s")
    assert "Arms begin with the same weights" in method.text and method.text.endswith(" The table is in samples/s.")
    assert [(row[0].text, row[2].text == "-") for row in table.rows][2:4] == [("3", False), ("4", True)]
    resumed = report.document("x", tmp_path, State("done", attempt=2), decode(PlanRecord, plan)[0])
    said = "It was interrupted and resumed: its blocks are from 2 starts."
    assert Prose(text=said) in next(section.parts for section in resumed.sections if section.title == "Rounds")
    assert Prose(text=said.replace("2", "1")) not in rounds_of(tmp_path, plan)
    change(tmp_path, 1, throughput={"unit": "steps/s", "mean": 8.0})
    method, table = rounds_of(tmp_path, plan)
    assert table.header == ("round", "amp=o0, samples/s", "amp=o2, steps/s") and "The table is in" not in method.text
    once = plan_of(tmp_path / "once", ("o0", []), ("o2", []), comparison={"rounds": 1, "steps": STEPS})
    (method,) = rounds_of(tmp_path / "once", once)
    assert method.text.startswith("1 round of one block of 10 steps") and "The table is in" not in method.text


def test_arms_whose_arguments_differ_may_do_other_work_in_a_step(tmp_path):
    plan = scripts(tmp_path, ("o0", NOISE), ("o0", TWICE, {"arguments": ["--batch", "64"]}))
    assert "; with other arguments a step may be other work. Losses" in concluded(tmp_path, plan)[1]


def test_the_loss_of_a_script_is_compared_over_all_its_blocks(tmp_path):
    losses = {"losses": [1.0] * 5}, {"losses": [1.3, 0.8, 1.2, 0.9, 1.05]}
    plan = scripts(tmp_path, ("o0", NOISE, losses[0]), ("o1", TWICE, losses[1]))
    assert cells(tmp_path, plan, "loss gap") == ["-", "+5.00%, noise"]
    near = {"losses": [1.01, 0.99, 1.0, 1.01, 1.005]}
    alike = scripts(tmp_path / "alike", ("o0", NOISE, losses[0]), ("o1", TWICE, near))
    assert cells(tmp_path / "alike", alike, "loss gap") == ["-", "+0.30%"], "within the tolerance it needs no excuse"
    assert (
        "may differ from block to block: a difference of the losses can be chance. With" in concluded(tmp_path, plan)[1]
    )


def test_rates_that_are_counted_differently_have_no_ratio(tmp_path):
    plan = scripts(tmp_path, ("o0", NOISE), ("o1", TWICE, {"counted": "AdamW, the first of 2 optimizers"}))
    first, second = concluded(tmp_path, plan)
    assert first == "The speed of amp=o1 can't be compared with that of the control, amp=o0."
    reason = "its speed and the control's can't be compared: they are of different counts (AdamW, the first of 2 "
    assert reason in second
    both = scripts(tmp_path / "both", ("o0", NOISE), *((level, TWICE, {"counted": "Adam"}) for level in ("o1", "o2")))
    said = "The speeds of amp=o1 and amp=o2 can't be compared with that of the control, amp=o0."
    assert concluded(tmp_path / "both", both)[0] == said
    assert "2.00" not in "\n".join(terminal(tmp_path, plan)).partition("COMPARISON")[2]


def test_an_arm_that_was_stopped_before_a_step_was_timed_is_not_of_another_unit(tmp_path):
    plan = scripts(tmp_path, ("o0", NOISE), ("o1", []))
    change(tmp_path, 1, throughput={"unit": "samples/s", "mean": None})
    assert concluded(tmp_path, plan)[0] == "No arm except the control, amp=o0, was measured."


def test_a_script_that_ends_before_its_block_counts_and_one_that_was_broken_off_does_not(tmp_path):
    plan = scripts(tmp_path, ("o0", NOISE, {"steps": 7}), ("o1", TWICE))
    assert "2.00 times the step rate of amp=o0" in concluded(tmp_path, plan)[0]
    method = rounds_of(tmp_path, plan)[0].text
    assert "Of amp=o0, 5 ended by themselves before that, after 7 steps or more." in method
    path = tmp_path / "arms/00/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "Too few rounds to tell a difference from noise" in concluded(tmp_path, plan)[0]
