from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.divergence import FLOOR, PATIENCE, Detector, Diverged
from recipes.precision.levels import PRESETS, LossScale

DYNAMIC, STATIC, NONE = PRESETS["dynamic"], PRESETS["static"], PRESETS["none"]


def row(step: int, *, loss: float = 1.0, skipped: bool = False, scale: float | None = None, norm: Any = None) -> Any:
    return {"step": step, "loss": loss, "skipped": skipped, "loss_scale": scale, "grad_norm": norm}


def detector(
    scale: LossScale = DYNAMIC, level: str = "o2", dtype: str = "float16", mechanism: str = "half_model_fp32_masters"
) -> Detector:
    return Detector(level=level, mechanism=mechanism, dtype=dtype, scale=scale)


def said(rows: Sequence[Any], detector: Detector) -> str:
    with pytest.raises(Diverged) as raised:
        detector.check(rows)
    return str(raised.value)


def dynamic(bad: Sequence[bool], scale: float = 2.0**16) -> list[Any]:
    """The rows of a dynamic scale where these steps overflow."""
    rows = []
    for step, each in enumerate(bad, 1):
        rows.append(row(step, skipped=each, scale=scale))
        scale = scale / 2 if each else scale
    return rows


@given(st.lists(st.booleans(), max_size=30))
def test_a_dynamic_scale_that_finds_its_level_has_not_diverged(bad: list[bool]) -> None:
    detector().check(dynamic([*bad, False]))  # from 2^16, thirty times halved is the floor


def test_a_fall_counts_from_where_the_scale_last_grew_and_reports_non_finite_losses() -> None:
    early = [row(1, skipped=True, scale=8.0), row(2, scale=4.0), row(3, scale=8.0)]
    late = dynamic([each for _ in range(40) for each in (True, False)], 2.0**4)
    late = [{**each, "step": each["step"] + 3, "loss": math.nan if each["skipped"] else 1.0} for each in late]
    assert said([*early, *late], detector()).startswith(
        "the loss scale fell from 16 to 6.10352e-05 since step 4: 19 of 37 steps overflowed and were skipped, 19 of "
        "them with a loss of NaN or Inf: look at the data, and at such"
    )


def test_an_own_floor_or_a_first_scale_below_the_default_floor_is_accepted_between_good_steps() -> None:
    low = 2.0**-16
    rows = [row(step, skipped=step % 2 == 0, scale=low) for step in range(1, 200)]
    detector(LossScale(mode="dynamic", init=low)).check(rows)
    detector(LossScale(mode="dynamic", min=low)).check(rows)


def test_a_scale_held_at_a_framework_s_own_floor_has_diverged_there() -> None:
    rows = [row(step, skipped=True, scale=max(2.0 ** (16 - step), 1.0)) for step in range(1, 60)]
    seen = detector()
    seen.check(rows[: 14 + PATIENCE])
    assert said(rows[14 + PATIENCE :], seen).startswith(
        "every step since step 1 overflowed and was skipped, and the loss scale is down to 1; "
    )


def test_a_scale_that_falls_rarely_is_not_taken_for_a_held_one() -> None:
    slow = LossScale(mode="dynamic", backoff_every=15)
    detector(slow).check([row(step, skipped=True, scale=2.0 ** (16 - step // 15)) for step in range(1, 200)])


@given(st.lists(st.booleans(), max_size=150))
def test_training_has_diverged_at_the_first_step_skipped_at_the_floor_and_no_other(bad: list[bool]) -> None:
    rows = dynamic([*bad, *[True] * 40])
    end = next(each["step"] for each in rows if each["skipped"] and each["loss_scale"] <= FLOOR)
    past = [each["skipped"] for each in rows[:end]]
    in_a_row = end if all(past) else past[::-1].index(False)
    seen = detector()
    seen.check(rows[: end - 1])
    assert said(rows[end - 1 :], seen).startswith(
        f"every step since step {end - in_a_row + 1} overflowed and was skipped, and the loss scale is down to 6.10352e"
        if in_a_row >= PATIENCE
        else f"the loss scale fell from 65536 to 6.10352e-05 since step {past.index(True) + 1}: {sum(past)} of "
        f"{end - past.index(True)} steps overflowed and were skipped, and at such a scale gradients vanish from the "
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_how_the_rows_are_split_does_not_matter(sizes: list[int]) -> None:
    rows = dynamic([True] * 100)
    whole = said(rows, detector())
    split, at = detector(), 0
    with pytest.raises(Diverged) as raised:
        for size in [*sizes, 100]:
            split.check(rows[at : at + size])
            at += size
    assert str(raised.value) == whole


def test_a_dynamic_scale_reports_since_when_and_how_far_down() -> None:
    assert said(dynamic([False, False, *[True] * 100]), detector()).startswith(
        f"every step since step 3 overflowed and was skipped, and the loss scale is down to {FLOOR:.6g}"
    )


def test_the_configured_floor_is_used() -> None:
    floor = LossScale(mode="dynamic", init=4.0, min=4.0)
    rows = [row(step, skipped=True, scale=4.0) for step in range(1, PATIENCE + 1)]
    detector(floor).check(rows[:-1])
    assert "is down to 4;" in said(rows, detector(floor))


def test_a_static_scale_has_the_same_patience() -> None:
    rows = [row(step, skipped=True, scale=128.0) for step in range(1, PATIENCE + 1)]
    seen = detector(STATIC)
    seen.check(rows[:-1])
    text = said(rows[-1:], seen)
    assert "every step since step 1 overflowed and was skipped, and the loss scale is fixed at 128;" in text
    assert "loss_scale=dynamic or a smaller loss_scale.init" in text


@pytest.mark.parametrize("scale", [DYNAMIC, STATIC])
def test_a_loss_that_stays_non_finite_has_diverged_before_the_scale_is_down(scale: LossScale) -> None:
    rows = [row(step, loss=math.nan, skipped=True, scale=2.0**16) for step in range(4, 4 + PATIENCE)]
    seen = detector(scale)
    seen.check([row(1), row(2), row(3), *rows[:-1]])
    text = said(rows[-1:], seen)
    assert text.startswith("the loss is NaN or Inf at every step since step 4, where no loss scale helps")
    assert "loss_scale" not in text and "a lower learning rate" in text


def test_one_finite_loss_among_skipped_ones_keeps_the_scale_searching() -> None:
    rows = [{**each, "loss": math.nan} for each in dynamic([True] * (PATIENCE + 5))]
    rows[PATIENCE - 1]["loss"] = 1.0
    detector().check(rows)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_of_a_taken_step_has_diverged_at_once(loss: float) -> None:
    assert said([row(1), row(2, loss=loss)], detector(NONE)).startswith(f"the loss is {loss} since step 2; try ")


def test_non_finite_gradients_of_a_taken_step_have_diverged() -> None:
    assert said([row(7, norm=math.inf)], detector(NONE)).startswith("the gradients are not finite at step 7; ")
    detector().check([row(7, norm=math.inf, skipped=True, scale=1.0)])


@pytest.mark.parametrize(
    ("level", "mechanism", "dtype", "scale", "tries"),
    [
        ("o0", "float32", "float32", NONE, "try a lower learning rate"),
        (
            "o1",
            "autocast",
            "bfloat16",
            NONE,
            "try a lower learning rate, or amp.deny=[...] for the operations that overflow",
        ),
        (
            "o3",
            "half_model",
            "float16",
            NONE,
            "try amp.dtype=bfloat16 where the device has it, amp=o2, or a lower learning rate",
        ),
        (
            "o2",
            "half_model_no_masters",
            "float16",
            NONE,
            "try amp.dtype=bfloat16 where the device has it, amp.master_weights=true, a lower learning rate, or "
            "amp.deny=[...] for the operations that overflow",
        ),
        (
            "o1",
            "grappler",
            "float16",
            DYNAMIC,
            "try a lower learning rate, or amp.deny=[...] for the operations that overflow",
        ),
        ("o2", "keras_policy", "bfloat16", NONE, "try a lower learning rate"),
        (
            "o2",
            "half_model_fp32_masters",
            "float16",
            NONE,
            "try amp.dtype=bfloat16 where the device has it, loss_scale=dynamic, a lower learning rate, or "
            "amp.deny=[...] for the operations that overflow",
        ),
    ],
)
def test_the_advice_fits_the_mode(level: str, mechanism: str, dtype: str, scale: LossScale, tries: str) -> None:
    assert said([row(1, loss=math.nan)], detector(scale, level, dtype, mechanism)).endswith(f"; {tries}")
