"""Published figures in the report of a comparison, next to ours."""

from __future__ import annotations

import pytest

from amp_launcher.typed import plain as as_plain
from launcher.plan.model import Published, PublishedArm
from launcher.report.document import Table

from .folders import NOISE, change, document, plan_of


def published(root, *rows, arms=(NOISE, NOISE), results=None, **more):
    """The section of published figures, and its table's columns as texts and as values; of two arms."""
    source = as_plain(Published(source="a page", hardware="a V100", arms=rows, **more))
    plan = plan_of(root, *zip(("o0", "o2"), arms, strict=True), published=source)
    change(root, 0, **(results or {}))
    (section,) = [part for part in document(root, plan).sections if part.title == "Comparison with published figures"]
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    columns = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    texts = {name: [cell.text for cell in cells] for name, cells in columns.items()}
    return section, texts, {name: [cell.value for cell in cells] for name, cells in columns.items()}


def test_published_figures_stand_beside_ours_and_only_ratios_are_compared(tmp_path):
    rows = PublishedArm(rate=393.49, memory_gib=25.43), PublishedArm(rate=1308.37, memory_gib=19.28)
    _, shown, _ = published(tmp_path, *rows, arms=(NOISE, [2 * factor for factor in NOISE[::-1]]))
    columns = {
        "published ratio": ["1.00", "3.33"],
        "our ratio": ["1.00", "2.00"],
        "published samples/s": ["393.49", "1308.37"],
        "published GiB": ["25.43", "19.28"],
        "our GiB": ["0.5", "0.5"],
    }
    assert columns.items() <= shown.items()
    assert "published loss" not in shown


def test_a_published_loss_stands_beside_ours_of_the_same_step(tmp_path):
    rows = PublishedArm(loss=0.6486028, loss_step=20), PublishedArm(loss=0.66, loss_step=10_000)
    section, shown, _ = published(tmp_path, *rows, note="Of one seed.")
    assert section.parts[1].text == "Of one seed."
    assert shown["published loss"] == ["0.6486028", "0.66"]
    assert shown["our loss"] == ["2.1", "-"]  # 2.3 - 20 / 100; there is no step 10,000


def test_published_times_and_test_accuracies_stand_beside_ours_of_the_same_work(tmp_path):
    rows = PublishedArm(step_seconds=0.5, epoch_seconds=159, accuracy=0.5242), PublishedArm()
    of_test = {"eval": {"accuracy": 0.9, "test_accuracy": 0.5}}
    _, _, column = published(tmp_path, *rows, arms=([1.0], [2.0]), results=of_test, epoch_samples=40_000)
    assert column["published s/step"] == [0.5, None]
    assert column["our s/step"] == pytest.approx([128 / rate for rate in column["our samples/s"]])
    assert column["our s/epoch"] == pytest.approx([40_000 / rate for rate in column["our samples/s"]])
    assert column["our accuracy"][0] == 0.5


def test_a_damaged_record_of_what_was_published_is_left_out(tmp_path):
    plan = plan_of(tmp_path, ("o0", NOISE), ("o2", NOISE), published={"source": "a page"})
    titles = [section.title for section in document(tmp_path, plan).sections]
    assert titles and "Comparison with published figures" not in titles


@pytest.mark.parametrize(
    ("control", "other", "expected"),
    [
        (PublishedArm(step_seconds=0.529), PublishedArm(step_seconds=0.102), 5.186),
        (PublishedArm(epoch_seconds=159), PublishedArm(epoch_seconds=67), 2.373),
        (PublishedArm(), PublishedArm(rate=3.0), None),
        (PublishedArm(rate=3.0), PublishedArm(), None),
        (PublishedArm(), PublishedArm(epoch_seconds=67), None),
        (PublishedArm(epoch_seconds=67), PublishedArm(), None),
        (PublishedArm(), PublishedArm(step_seconds=0.1), None),
        (PublishedArm(step_seconds=0.1), PublishedArm(), None),
    ],
)
def test_published_times_are_turned_into_gains(tmp_path, control, other, expected):
    _, _, column = published(tmp_path, control, other)
    assert column.get("published ratio", [None, None])[1] == pytest.approx(expected, abs=5e-4)
