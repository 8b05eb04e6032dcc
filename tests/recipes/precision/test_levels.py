"""The legality table, the presets, and what is refused before anything is queued."""

from __future__ import annotations

import itertools
import math

import pytest

from recipes.precision.checks import check
from recipes.precision.levels import LEVELS, MODES, PRESETS, Amp, LossScale
from recipes.precision.resolved import resolve, resolve_dtype, resolve_scale
from recipes.precision.support import support_for
from recipes.typed import SettingsError

GPU = (8, 0)
FRAMEWORKS = ("torch", "tensorflow", "paddle")

# framework, level -> the mechanism of float16 and bfloat16 on a CPU, and of both on a GPU; a hole is None. Without XLA.
HALF = {
    ("torch", "o1"): ["autocast"] * 4,
    ("torch", "o2"): ["half_model_fp32_masters"] * 4,
    ("torch", "o3"): ["half_model"] * 4,
    ("tensorflow", "o1"): [None, "grappler", "grappler", None],
    ("tensorflow", "o2"): ["keras_policy"] * 4,
    ("tensorflow", "o3"): ["keras_policy"] * 4,
    ("paddle", "o1"): [None, None, "auto_cast", "auto_cast"],
    ("paddle", "o2"): [None, None, "decorate_auto_cast", "decorate_auto_cast"],
    ("paddle", "o3"): [None, None, "decorate_no_masters", "decorate_no_masters"],
}
TABLE = {
    **{
        (*row, dtype, device): mechanism
        for row, mechanisms in HALF.items()
        for (device, dtype), mechanism in zip(
            itertools.product(("cpu", "cuda"), ("float16", "bfloat16")), mechanisms, strict=True
        )
    },
    **{
        (framework, "o0", "float32", device): "float32"
        for framework, device in itertools.product(FRAMEWORKS, ("cpu", "cuda"))
    },
}


def test_the_table_has_every_level_in_every_framework():
    assert {cell[:2] for cell in TABLE} == set(itertools.product(FRAMEWORKS, LEVELS))


@pytest.mark.parametrize(("cell", "expected"), TABLE.items(), ids=lambda value: "-".join(value) if value else "hole")
def test_each_cell_has_its_mechanism_or_a_reason(cell, expected):
    framework, level, dtype, device = cell
    row = support_for(framework, level, dtype, False, device)
    if expected is None:
        assert row.unsupported
        assert not row.mechanism
    else:
        assert row.mechanism == expected
        assert not row.unsupported


@pytest.mark.parametrize("cell", [cell for cell in TABLE if cell[0] == "torch"], ids="-".join)
def test_xla_with_torch_is_refused_and_compile_named(cell):
    _, level, dtype, device = cell
    assert "compile=true" in support_for("torch", level, dtype, True, device).unsupported


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_xla_on_a_cpu_runs_float32_in_tensorflow_and_is_refused(level):
    assert support_for("tensorflow", level, "bfloat16", True, "cpu").unsupported
    assert support_for("tensorflow", level, "float16", True, "cuda").mechanism


def test_o2_without_masters_is_a_mechanism_of_its_own():
    assert (
        support_for("torch", "o2", "bfloat16", False, "cpu", master_weights=False).mechanism == "half_model_no_masters"
    )
    assert support_for("torch", "o2", "bfloat16", False, "cpu", master_weights=True).mechanism.endswith("masters")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_stochastic_rounding_is_a_mechanism_of_its_own(device):
    row = support_for("torch", "o3", "bfloat16", False, device, rounding="stochastic")
    assert (row.mechanism, row.unsupported) == ("half_model_stochastic", "")


@pytest.mark.parametrize(
    ("amp", "framework", "says"),
    [
        (Amp(level="o0", rounding="stochastic"), "torch", "those of amp=o0 are float32; say amp=o3"),
        (Amp(level="o1", rounding="stochastic"), "torch", "those of amp=o1 are float32; say amp=o3"),
        (Amp(level="o2", rounding="stochastic"), "torch", "takes the place of the float32 masters of amp=o2"),
        (Amp(level="o3", dtype="float16", rounding="stochastic"), "torch", "needs bfloat16, .*say amp.dtype=bfloat16"),
        (Amp(level="o3", rounding="stochastic"), "tensorflow", "is for torch, and this is framework=tensorflow"),
        (Amp(level="o3", rounding="stochastic"), "paddle", "is for torch, and this is framework=paddle"),
    ],
)
def test_stochastic_rounding_is_for_o3_in_bfloat16_in_torch(amp, framework, says):
    with pytest.raises(SettingsError, match=f"amp.rounding=stochastic .*{says}") as caught:
        check(amp, LossScale(), framework)
    assert caught.value.key == "amp.rounding"
    check(Amp(level="o3", rounding="stochastic"), LossScale())
    check(Amp(level="o3", dtype="bfloat16", rounding="stochastic", preset="bf16-true"), LossScale())


def test_a_gpu_without_bfloat16_has_no_stochastic_rounding():
    with pytest.raises(SettingsError, match=r"amp\.rounding=stochastic needs bfloat16"):
        resolve(
            Amp(level="o3", rounding="stochastic"),
            LossScale(),
            framework="torch",
            device="cuda",
            capability=(7, 5),
            environ={},
        )


def test_an_unknown_framework_is_refused():
    with pytest.raises(SettingsError, match="framework=jax is not one of torch, tensorflow, paddle"):
        support_for("jax", "o1", "float16", False, "cpu")


@pytest.mark.parametrize(
    ("level", "dtype", "device", "capability", "framework", "expected"),
    [
        ("o0", "auto", "cpu", None, "torch", "float32"),
        ("o0", "auto", "cuda", (6, 1), "torch", "float32"),
        ("o1", "auto", "cpu", None, "torch", "bfloat16"),
        ("o1", "float16", "cpu", None, "torch", "float16"),
        ("o1", "auto", "cuda", (7, 0), "torch", "float16"),
        ("o1", "auto", "cuda", (7, 5), "torch", "float16"),
        ("o1", "auto", "cuda", GPU, "torch", "bfloat16"),
        ("o2", "float16", "cuda", (9, 0), "torch", "float16"),
        ("o1", "auto", "cuda", GPU, "tensorflow", "float16"),
        ("o2", "auto", "cuda", GPU, "tensorflow", "bfloat16"),
        ("o1", "auto", "cpu", None, "tensorflow", "bfloat16"),
    ],
)
def test_auto_is_decided_by_the_device(level, dtype, device, capability, framework, expected):
    assert resolve_dtype(level, dtype, device, capability, framework) == expected


def test_bfloat16_below_capability_8_is_refused():
    with pytest.raises(SettingsError, match=r"needs compute capability 8\.0.*has 7\.5.*amp\.dtype=float16"):
        resolve_dtype("o1", "bfloat16", "cuda", (7, 5))


def test_a_gpu_without_half_precision_is_not_advised_to_take_the_other_one():
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(SettingsError, match=r"needs compute capability 7\.0.*has 3\.5; say amp=o0$"):
            resolve_dtype("o1", dtype, "cuda", (3, 5))


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_half_precision_below_capability_7_is_refused(dtype):
    with pytest.raises(SettingsError, match=r"needs compute capability 7\.0.*has 6\.1.*amp=o0"):
        resolve_dtype("o1", dtype, "cuda", (6, 1))


@pytest.mark.parametrize(
    ("level", "dtype", "masters", "expected"),
    [
        ("o0", "float32", None, "none"),
        ("o1", "float16", None, "dynamic"),
        ("o1", "bfloat16", None, "none"),
        ("o2", "float16", None, "dynamic"),
        ("o2", "float16", True, "dynamic"),
        ("o2", "float16", False, "none"),
        ("o2", "bfloat16", None, "none"),
        ("o3", "float16", None, "none"),
    ],
)
def test_an_auto_loss_scale_is_dynamic_where_float16_has_float32_gradients(level, dtype, masters, expected):
    assert resolve_scale(LossScale(), level, dtype, masters).mode == expected


@pytest.mark.parametrize("mode", ["dynamic", "static", "none"])
def test_a_loss_scale_that_was_named_is_kept(mode):
    assert resolve_scale(LossScale(mode=mode), "o1", "bfloat16").mode == mode


# init, growth, growth_every, backoff, backoff_every, min, max: from each framework's own documentation.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dynamic", (2**16, 2, 2000, 0.5, 1, None, None)),
        ("apex", (2**16, 2, 2000, 0.5, 1, None, 2**24)),
        ("tf", (2**15, 2, 2000, 0.5, 1, 1, None)),
        ("keras", (2**15, 2, 2000, 0.5, 1, None, None)),
        ("paddle", (2**15, 2, 1000, 0.5, 2, None, None)),
    ],
)
def test_presets_are_what_their_frameworks_document(name, expected):
    preset = PRESETS[name]
    numbers = (
        preset.init,
        preset.growth,
        preset.growth_every,
        preset.backoff,
        preset.backoff_every,
        preset.min,
        preset.max,
    )
    assert preset.mode == "dynamic"
    assert numbers == expected


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_legal_with_o1(name):
    check(Amp(level="o1"), PRESETS[name])


@pytest.mark.parametrize("preset", ["fp8", "bf16-mixed", "fp16-true"])
@pytest.mark.parametrize(
    "changed",
    [
        {"level": "o0"},
        {"level": "o2"},
        {"level": "o3"},
        {"dtype": "float16"},
        {"gemm": "half"},
        {"gemm": "fp8-rowwise"},
    ],
)
def test_what_is_said_instead_of_a_contradicted_preset_is_legal(preset, changed):
    mode = MODES[preset]
    asked = {"level": mode.level, "dtype": mode.dtype, "gemm": mode.gemm, **changed}
    if asked == {"level": mode.level, "dtype": mode.dtype, "gemm": mode.gemm}:
        return
    with pytest.raises(SettingsError, match=f"with amp={preset}") as refused:
        check(Amp(**asked, preset=preset), LossScale())
    said = dict(word.split("=") for word in str(refused.value).partition("; say ")[2].split())
    check(
        Amp(**{{"amp": "level"}.get(key, key.removeprefix("amp.")): value for key, value in said.items()}), LossScale()
    )


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_legal_by_itself(level):
    check(Amp(level=level), LossScale())


@pytest.mark.parametrize(
    ("amp", "message"),
    [
        (Amp(level="o0", dtype="float16"), "amp.dtype=float16 with amp=o0"),
        (Amp(level="o0", deny=("conv2d",)), r"amp\.deny=\[conv2d\] with amp=o0"),
        (Amp(level="o0", keep_fp32=("head",)), r"amp\.keep_fp32=\[head\] with amp=o0"),
        (Amp(level="o3", allow=("softmax",)), "amp=o3 has none"),
        (Amp(level="o1", master_weights=True), "amp.master_weights=true with amp=o1"),
        (Amp(level="o1", allow=("softmax",), deny=("softmax",)), "softmax is on both"),
        (
            Amp(level="o1", allow=("elementwise_add",), deny=("add",)),
            r"add is on both amp\.allow and amp\.deny \(as elementwise_add and add\)",
        ),
        (Amp(level="o1", infer=("relu",)), r"amp.infer=\[relu\] is a list of TensorFlow's graph rewrite"),
        (Amp(level="o0", clear=("relu",)), r"amp.clear=\[relu\] .*is framework=torch|amp.clear=\[relu\] with amp=o0"),
        (Amp(level="o1", deny=("con2d",)), "amp.deny: con2d is not an operation known here; did you mean conv2d"),
    ],
)
def test_an_impossible_precision_is_refused(amp, message):
    with pytest.raises(SettingsError, match=message):
        check(amp, LossScale())


def test_tensorflow_has_operation_names_of_its_own():
    check(Amp(level="o1", deny=("Conv2D",)), LossScale(), "tensorflow")
    with pytest.raises(SettingsError, match="MatMul is on both"):
        check(Amp(level="o1", allow=("MatMul",), deny=("MatMul",)), LossScale(), "tensorflow")


@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("amp", [Amp(level="o0"), Amp(level="o3"), Amp(level="o2", master_weights=False)])
def test_a_loss_scale_without_float32_gradients_to_unscale_into_is_refused(mode, amp):
    with pytest.raises(SettingsError, match=f"loss_scale.mode={mode} with amp={amp.level}.*say loss_scale=none"):
        check(amp, LossScale(mode=mode))


@pytest.mark.parametrize(
    ("scale", "key"),
    [
        (LossScale(init=0.0), "init"),
        (LossScale(init=math.inf), "init"),
        (LossScale(init=math.nan), "init"),
        (LossScale(growth=1.0), "growth"),
        (LossScale(growth=math.inf), "growth"),
        (LossScale(backoff=1.0), "backoff"),
        (LossScale(backoff=0.0), "backoff"),
        (LossScale(growth_every=0), "growth_every"),
        (LossScale(backoff_every=0), "backoff_every"),
        (LossScale(min=-1.0), "min"),
        (LossScale(max=math.nan), "max"),
        (LossScale(init=4.0, min=8.0), "init"),
        (LossScale(init=4.0, max=2.0), "init"),
    ],
)
def test_a_number_that_no_loss_scale_can_have_is_refused(scale, key):
    with pytest.raises(SettingsError) as caught:
        check(Amp(level="o1"), scale)
    assert caught.value.key == f"loss_scale.{key}"
    assert f"loss_scale.{key}=" in str(caught.value)


@pytest.mark.parametrize(
    ("framework", "mode", "says"),
    [
        ("paddle", "auto", "Paddle's scaler is one for all optimizers"),
        ("torch", "none", "there is no scale; leave it out"),
        ("tensorflow", "none", "there is no scale; leave it out"),
    ],
)
def test_a_scale_for_each_optimizer_is_refused_where_there_can_be_none(framework, mode, says):
    with pytest.raises(SettingsError, match=says):
        check(Amp(level="o1"), LossScale(mode=mode, per_optimizer=True), framework)
    check(Amp(level="o1"), LossScale(per_optimizer=True), "torch")
