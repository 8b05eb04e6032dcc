from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_launcher.loop.divergence import FLOOR, PATIENCE, Detector, Diverged
from amp_launcher.precision.levels import PRESETS, LossScale

DYNAMIC, STATIC, NONE = PRESETS["dynamic"], PRESETS["static"], PRESETS["none"]


def row(step: int, *, loss: float = 1.0, skipped: bool = False, scale: float | None = None, norm: Any = None) -> Any:
    return {"step": step, "loss": loss, "skipped": skipped, "loss_scale": scale, "grad_norm": norm}


def detector(
    scale: LossScale = DYNAMIC, level: str = "o2", dtype: str = "float16", mechanism: str = "half_model_fp32_masters"
) -> Detector:
    return Detector(level=level, mechanism=mechanism, dtype=dtype, scale=scale)


def message(rows: Sequence[Any], detector: Detector) -> str:
    with pytest.raises(Diverged) as raised:
        detector.check_rows(rows)
    return str(raised.value)


def dynamic(bad: Sequence[bool], scale: float = 2.0**16) -> list[Any]:
    """The rows of a dynamic scale where these steps overflow."""
    rows = []
    for step, skipped in enumerate(bad, 1):
        rows.append(row(step, skipped=skipped, scale=scale))
        scale = scale / 2 if skipped else scale
    return rows


@given(st.lists(st.booleans(), max_size=30))
def test_a_dynamic_scale_that_finds_its_level_has_not_diverged(bad: list[bool]) -> None:
    detector().check_rows(dynamic([*bad, False]))  # from 2^16, thirty times halved is the floor


def test_a_fall_counts_from_where_the_scale_last_grew_and_reports_non_finite_losses() -> None:
    early = [row(1, skipped=True, scale=8.0), row(2, scale=4.0), row(3, scale=8.0)]
    late = dynamic([True, False] * 40, 2.0**4)
    late = [{**values, "step": values["step"] + 3, "loss": math.nan if values["skipped"] else 1.0} for values in late]
    assert message([*early, *late], detector()).startswith(
        "the loss scale fell from 16 to 6.10352e-05 since step 4: 19 of 37 steps overflowed and were skipped, 19 of "
        "them with a loss of NaN or Inf: look at the data, and at such"
    )


def test_an_own_floor_or_a_first_scale_below_the_default_floor_is_accepted_between_good_steps() -> None:
    low = 2.0**-16
    rows = [row(step, skipped=step % 2 == 0, scale=low) for step in range(1, 200)]
    detector(LossScale(mode="dynamic", init=low)).check_rows(rows)
    detector(LossScale(mode="dynamic", min=low)).check_rows(rows)


def test_a_scale_held_at_a_framework_s_own_floor_has_diverged_there() -> None:
    rows = [row(step, skipped=True, scale=max(2.0 ** (16 - step), 1.0)) for step in range(1, 60)]
    seen = detector()
    seen.check_rows(rows[: 14 + PATIENCE])
    assert message(rows[14 + PATIENCE :], seen).startswith(
        "every step since step 1 overflowed and was skipped, and the loss scale is down to 1; "
    )


@pytest.mark.parametrize("scale", [DYNAMIC, STATIC])
def test_a_scale_of_a_script_that_is_not_read_says_nothing(scale: LossScale) -> None:
    """On a GPU reading it waits."""
    detector(scale).check_rows([row(step, skipped=True) for step in range(1, 200)])


def test_a_scale_that_falls_rarely_is_not_taken_for_a_held_one() -> None:
    slow = LossScale(mode="dynamic", backoff_every=15)
    detector(slow).check_rows([row(step, skipped=True, scale=2.0 ** (16 - step // 15)) for step in range(1, 200)])


@given(st.lists(st.booleans(), max_size=150))
def test_training_has_diverged_at_the_first_step_skipped_at_the_floor_and_no_other(bad: list[bool]) -> None:
    rows = dynamic([*bad, *[True] * 40])
    end = next(row["step"] for row in rows if row["skipped"] and row["loss_scale"] <= FLOOR)
    past = [row["skipped"] for row in rows[:end]]
    in_a_row = end if all(past) else past[::-1].index(False)
    seen = detector()
    seen.check_rows(rows[: end - 1])
    assert message(rows[end - 1 :], seen).startswith(
        f"every step since step {end - in_a_row + 1} overflowed and was skipped, and the loss scale is down to 6.10352e"
        if in_a_row >= PATIENCE
        else f"the loss scale fell from 65536 to 6.10352e-05 since step {past.index(True) + 1}: {sum(past)} of "
        f"{end - past.index(True)} steps overflowed and were skipped, and at such a scale gradients vanish from the "
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_how_the_rows_are_split_does_not_matter(sizes: list[int]) -> None:
    rows = dynamic([True] * 100)
    at_once = message(rows, detector())
    split, at = detector(), 0
    with pytest.raises(Diverged) as raised:
        for size in [*sizes, 100]:
            split.check_rows(rows[at : at + size])
            at += size
    assert str(raised.value) == at_once


def test_the_configured_floor_is_used() -> None:
    floor = LossScale(mode="dynamic", init=4.0, min=4.0)
    rows = [row(step, skipped=True, scale=4.0) for step in range(1, PATIENCE + 1)]
    detector(floor).check_rows(rows[:-1])
    assert "is down to 4;" in message(rows, detector(floor))


def test_a_static_scale_has_the_same_patience() -> None:
    rows = [row(step, skipped=True, scale=128.0) for step in range(1, PATIENCE + 1)]
    seen = detector(STATIC)
    seen.check_rows(rows[:-1])
    why = message(rows[-1:], seen)
    assert "every step since step 1 overflowed and was skipped, and the loss scale is fixed at 128;" in why
    assert "loss_scale=dynamic or a smaller loss_scale.init" in why


@pytest.mark.parametrize("scale", [DYNAMIC, STATIC])
def test_a_loss_that_stays_non_finite_has_diverged_before_the_scale_is_down(scale: LossScale) -> None:
    rows = [row(step, loss=math.nan, skipped=True, scale=2.0**16) for step in range(4, 4 + PATIENCE)]
    seen = detector(scale)
    seen.check_rows([row(1), row(2), row(3), *rows[:-1]])
    why = message(rows[-1:], seen)
    assert why.startswith("the loss is NaN or Inf at every step since step 4, where no loss scale helps")
    assert "loss_scale" not in why and "a lower learning rate" in why


def test_one_finite_loss_among_skipped_ones_keeps_the_scale_searching() -> None:
    rows = [{**values, "loss": math.nan} for values in dynamic([True] * (PATIENCE + 5))]
    rows[PATIENCE - 1]["loss"] = 1.0
    detector().check_rows(rows)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_of_a_taken_step_has_diverged_at_once(loss: float) -> None:
    assert message([row(1), row(2, loss=loss)], detector(NONE)).startswith(f"the loss is {loss} since step 2; try ")


def test_non_finite_gradients_of_a_taken_step_have_diverged() -> None:
    assert message([row(7, norm=math.inf)], detector(NONE)).startswith("the gradients are not finite at step 7; ")
    detector().check_rows([row(7, norm=math.inf, skipped=True, scale=1.0)])


BFLOAT16, RATE = "amp.dtype=bfloat16 where the device has it", "a lower learning rate"
DENY = "or amp.deny=[...] for the operations that overflow"


@pytest.mark.parametrize(
    ("level", "mechanism", "dtype", "scale", "advice"),
    [
        ("o0", "float32", "float32", NONE, RATE),
        ("o1", "autocast", "bfloat16", NONE, f"{RATE}, {DENY}"),
        ("o3", "half_model", "float16", NONE, f"{BFLOAT16}, amp=o2, or {RATE}"),
        ("o2", "half_model_no_masters", "float16", NONE, f"{BFLOAT16}, amp.master_weights=true, {RATE}, {DENY}"),
        ("o1", "grappler", "float16", DYNAMIC, f"{RATE}, {DENY}"),
        ("o2", "keras_policy", "bfloat16", NONE, RATE),
        ("o2", "half_model_fp32_masters", "float16", NONE, f"{BFLOAT16}, loss_scale=dynamic, {RATE}, {DENY}"),
    ],
)
def test_the_advice_fits_the_mode(level, mechanism, dtype, scale, advice):
    assert message([row(1, loss=math.nan)], detector(scale, level, dtype, mechanism)).endswith(f"; try {advice}")
