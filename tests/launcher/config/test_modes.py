"""Modes by the names that other programs have for them: what they are here, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import request
from launcher.config.compose import Composer
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from recipes import arguments
from recipes.precision.levels import MODES
from recipes.typed import SettingsError
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of

EXPECTED = {
    "fp32": ("o0", "float32", False),
    "tf32": ("o0", "float32", True),
    "fp16-mixed": ("o1", "float16", True),
    "bf16-mixed": ("o1", "bfloat16", True),
    "fp16-true": ("o3", "float16", True),
    "bf16-true": ("o3", "bfloat16", True),
}
"""Level, dtype and TF32 on a GPU that has all of them."""
FORMATS = {
    "fp8": ("o2", "bfloat16", "fp8-tensorwise"),
    "mxfp8": ("o2", "bfloat16", "mxfp8"),
    "nvfp4": ("o2", "bfloat16", "nvfp4"),
}
"""Level, dtype and number format of linear layers' products."""


def specs_of(*words: str) -> tuple[JobSpec, ...]:
    return request.understand(request.compose(request.take_apart(words, starts=True)))


def planned(spec: JobSpec) -> Plan:
    return resolve(spec, TWO_A100)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_is_a_level_with_its_dtype_and_tf32(name: str) -> None:
    plan = planned(spec_of(f"amp={name}"))
    assert plan.precision is not None
    assert (plan.settings["amp"]["level"], plan.precision.dtype, plan.precision.tf32) == (
        EXPECTED[name][0],
        EXPECTED[name][1] if EXPECTED[name][0] != "o0" else plan.precision.dtype,
        EXPECTED[name][2],
    )
    assert plan.precision.dtype in (EXPECTED[name][1], None)
    assert (plan.name, plan.words[0]) == (f"mnist-{name}", f"amp={name}")
    assert plan.precision.loss_scale == ("dynamic" if name == "fp16-mixed" else "none")


def test_every_name_is_expected_here() -> None:
    assert [*EXPECTED, *FORMATS] == list(MODES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_is_a_level_with_a_number_format(name: str) -> None:
    amp = arguments.parse([f"amp={name}"], "gpt", "torch").settings.amp
    assert (amp.level, amp.dtype, amp.gemm, amp.asked) == (*FORMATS[name], name)


def test_swept_names_are_the_names_of_cells() -> None:
    specs = specs_of("amp=fp32,bf16-mixed,o2", "amp.deny=[softmax]")
    assert [spec.swept for spec in specs] == [(("amp", "fp32"),), (("amp", "bf16-mixed"),), (("amp", "o2"),)]
    assert [planned(spec).name for spec in specs] == ["mnist-fp32", "mnist-bf16-mixed", "mnist-o2"]
    assert [spec.training.amp.deny for spec in specs] == [(), ("softmax",), ("softmax",)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("amp=bf16-mixed", "amp.dtype=float16"),
            "amp.dtype=float16 with amp=bf16-mixed.*say amp=o1 amp.dtype=float16",
        ),
        (("amp=fp16-true", "amp.level=o2"), "amp.level=o2 with amp=fp16-true, which is o3; say amp=o2"),
        (("amp=fp32", "tf32=true"), "tf32=true with amp=fp32; say amp=tf32"),
        (("amp=tf32", "tf32=false"), "tf32=false with amp=tf32; say amp=fp32"),
        (("amp=o1", "amp.preset=bf16-true"), "amp.level=o1 with amp=bf16-true"),
        (
            ("amp=fp8", "amp.gemm=fp8-rowwise"),
            "amp.gemm=fp8-rowwise with amp=fp8, which is fp8-tensorwise; "
            "say amp=o2 amp.dtype=bfloat16 amp.gemm=fp8-rowwise",
        ),
    ],
)
def test_a_key_that_contradicts_the_name_is_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        spec_of(*words)


def test_tf32_where_there_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="a CPU has no TF32; say tf32=false, or amp=fp32 for amp=tf32"):
        resolve(spec_of("amp=tf32"), LAPTOP)


def test_a_name_overrides_a_users_defaults_and_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("amp: tf32\n")
    composer = Composer(config_dirs=[tmp_path])
    assert spec_of(composer=composer).training.tf32 is True
    (tmp_path / "config.yaml").write_text("tf32: true\n")
    composer = Composer(config_dirs=[tmp_path])
    assert spec_of("amp=fp32", composer=composer).training.tf32 is False
    assert spec_of("amp=bf16-mixed", composer=composer).training.tf32 is True


@pytest.mark.parametrize("name", EXPECTED)
def test_a_trainer_that_is_started_by_hand_takes_the_same_names(name: str) -> None:
    chosen = arguments.parse([f"amp={name}"], "mnist", "torch").settings
    expected = spec_of(f"amp={name}").training
    assert (chosen.amp, chosen.tf32) == (expected.amp, expected.tf32)
    with pytest.raises(SettingsError, match="with amp="):
        arguments.parse(
            [f"amp={name}", "amp.dtype=float16" if "bf16" in name else "amp.dtype=bfloat16"], "mnist", "torch"
        )
