"""What a trainer that is started by hand refuses of its words before anything runs.

`tests/launcher/config/test_refusals.py` has more of them, which the launcher refuses by the same functions.
"""

from __future__ import annotations

import math

import pytest

from amp_launcher import settings
from amp_launcher.arguments import parse
from amp_launcher.typed import SettingsError

WORDS = {
    "amp=o9": "amp=o9 is not one of o0, o1, o2, o3 (command line)",
    "loss_scale=tff": "did you mean tf? (command line)",
    "data=digit": "not one of digits, mnist, synthetic, the data of recipe=mnist; did you mean digits?",
    "btach=3": "unknown key btach; did you mean batch?",
    "train.lrr=1": "unknown key train.lrr; did you mean train.lr?",
    "nothing.here=1": "unknown key nothing.here",
    "batch.size=1": "unknown key batch.size",
    "batch=many": "batch=many should be a whole number (command line)",
    "train=1": "train=1 should be a group of keys: lr, rho",
    "batch": "'batch' should be key=value",
    "=3": "should be key=value",
    "run=": "run= names no path",
    "data.dir=a\nb": "control character",
    "recipe=resnet50": "recipe=resnet50, and this trainer is recipe=mnist",
    "framework=paddle": "framework=paddle, and this trainer is framework=torch",
    "amp=o1 amp.level=o2": "amp=o1 and amp.level=o2: say one of them (command line)",
    "epochs=1 steps=1": "epochs=1 and steps=1: say one of them",
    "batch=0": "batch=0 must be at least 1",
    f"train.lr={10**400}": "train.lr=1" + "0" * 400 + " is beyond what a number can be",
    "checkpoint.keep=0": "checkpoint.keep=0 must be at least 1",
    "data=digits batch=2000": "batch=2000 is more than the 1536 samples of data=digits",
}
HYPER_PARAMETERS = {
    "simplenet train.width=0": "must be at least 1",
    "simplenet train.lr=nan": "must be above zero",
    "resnet50 train.image_size=31": "must be at least 32",
    "resnet50 train.classes=1": "must be at least 2",
    "resnet50 train.label_smoothing=1.0": "must be from 0 up to, but not, 1",
    "resnet50 train.lr=inf": "must be above zero and finite",
    "resnet50 train.warmup_epochs=inf": "must be at least 0 and finite",
    "resnet50 train.stages=[3,4,6,3,1]": "must be 1 to 4 numbers, one for a stage",
    "mnist train.lr=-1.0": "must be above zero",
    "mnist train.rho=2.0": "must be from 0 up to, but not, 1",
    "mnist train.dropout_conv=nan": "must be from 0 up to, but not, 1",
    "mnist train.dropout_dense=1.0": "must be from 0 up to, but not, 1",
    "mnist train.clip=0.0": "must be above zero",
    "efficientnet train.lr=0.0": "must be above zero",
    "gan train.channels=[64,64]": "must be four numbers, as [64,64,32,8]",
    "gan train.sharp=1.5": "must be from 0 to 1",
    "script train.processes=0": "must be at least 1",
    "gpt train.vocab_size=1": "must be at least 2",
    "gpt train.clip=0.0": "must be above zero",
    "gpt train.beta2=1.0": "must be from 0 up to, but not, 1",
    "gpt train.width=100": "must be a multiple of 2 x train.heads=4: rotary positions turn the features of a head in "
    "pairs; say train.width=96 or 104, or another train.heads",
}
ONE_OF_SEVERAL = {
    "efficientnet train.stages=[1,0]": "train.stages=0 must be at least 1",
    "gan train.channels=[64,64,0,8]": "train.channels=0 must be at least 1",
}
LOSS_SCALE = {
    **{f"amp=o1 loss_scale.init={value}": "must be above zero and finite" for value in (0.0, math.inf, math.nan)},
    "amp=o1 loss_scale.growth=1.0": "must be above 1",
    "amp=o1 loss_scale.growth=inf": "must be above zero and finite",
    "amp=o1 loss_scale.backoff=1.0": "must be below 1",
    "amp=o1 loss_scale.backoff=0.0": "must be above zero and finite",
    "amp=o1 loss_scale.growth_every=0": "must be above zero",
    "amp=o1 loss_scale.backoff_every=0": "must be above zero",
    "amp=o1 loss_scale.min=-1.0": "must be above zero",
    "amp=o1 loss_scale.max=nan": "must be above zero",
    "amp=o1 loss_scale.min=8.0 loss_scale.init=4.0": "is outside loss_scale.min=8.0 to loss_scale.max=null",
    "amp=o1 loss_scale.max=2.0 loss_scale.init=4.0": "is outside loss_scale.min=null to loss_scale.max=2.0",
    **{
        f"{words} loss_scale.mode={mode}": f"with {words.split(' ')[0]}: {why}; say loss_scale=none"
        for mode in ("dynamic", "static")
        for words, why in {
            "amp=o0": "float32 gradients need no scale",
            "amp=o2 amp.master_weights=false": "without master weights there are no float32 gradients to unscale into",
            "amp=o3": "o3 has no float32 masters to unscale into",
        }.items()
    },
    "framework=paddle loss_scale.per_optimizer=true": "Paddle's scaler is one for all optimizers; leave it out",
    "framework=paddle loss_scale.max=65536.0": "Paddle's scaler has no bounds; leave it out",
    "framework=paddle amp.dtype=bfloat16 loss_scale.mode=static": "switches itself off for bfloat16",
    **{
        f"framework={name} loss_scale=none loss_scale.per_optimizer=true": "there is no scale; leave it out"
        for name in ("torch", "tensorflow")
    },
}
PRECISION = {
    "amp=o0 amp.deny=[conv2d]": "amp.deny=[conv2d] with amp=o0",
    "amp=o0 amp.keep_fp32=[head]": "amp.keep_fp32=[head] with amp=o0",
    "amp=o0 amp.clear=[relu]": "amp.clear=[relu] with amp=o0",
    "amp=o3 amp.allow=[softmax]": "amp=o3 has none",
    "amp=o1 amp.allow=[matmul_v2] amp.deny=[matmul]": "on both amp.allow and amp.deny (as matmul_v2 and matmul)",
    "amp=o1 amp.infer=[relu]": "amp.infer=[relu] is a list of TensorFlow's graph rewrite",
    "amp=o1 amp.deny=[con2d]": "amp.deny: con2d is not an operation known here; did you mean conv2d",
    "framework=tensorflow amp=o1 amp.allow=[MatMul] amp.deny=[MatMul]": "MatMul is on both",
    "framework=tensorflow amp=o2 amp.allow=[Softmax]": "amp.allow=[Softmax] with amp=o2: in TensorFlow only o1's",
    "framework=tensorflow amp=o1 amp.keep_fp32=[head]": "only the Keras policy of o2 goes by layers",
    "framework=tensorflow amp=o2 amp.master_weights=false": "always float32; say amp=o3",
    "framework=paddle amp=o1 amp.deny=[mse_loss]": "amp.deny: Paddle has no operation mse_loss",
    "framework=paddle amp=o1 amp.keep_fp32=[head]": "amp.keep_fp32=[head] with amp=o1: in Paddle only",
    **{
        f"framework={name} amp=o2 amp.gemm=fp8-rowwise": f"is for framework=torch, and this is framework={name}; say "
        "amp.gemm=half"
        for name in ("tensorflow", "paddle")
    },
}
GEMM = {
    "amp=fp8 train.width=104": "left out (blocks.0.attention.qkv: 104 -> 312, not in multiples of 16; ",
    "amp=fp8 amp.gemm_exclude=[lm_head]": "lm_head names no linear layer of recipe=gpt; did you mean head?",
    "amp=fp8 amp.gemm_exclude=[blocks,head]": "; say amp=o2, or amp.gemm_exclude=[] to leave out none",
    "amp=nvfp4 train.width=64": "blocks.0.attention.qkv: 64 -> 192, not in multiples of 128; ",
    "amp=nvfp4 batch=1 train.context=64": "must be a multiple of 128, and recipe=gpt has 64 on a device",
    "amp=o1 amp.gemm=mxfp8": "its layers take weights in bfloat16, and those of o1 are float32; say amp=o2",
    "amp=o2 amp.gemm=fp8-delayed": "is TransformerEngine's, whose products no observer of torch sees",
    **{
        f"amp={level} amp.gemm=fp8-rowwise": f"amp.gemm=fp8-rowwise with amp={level}: it needs float32 weights or "
        "masters, and bfloat16 elsewhere; say amp=o1 or amp=o2"
        for level in ("o0", "o3")
    },
    "amp=o1 amp.gemm=fp8-rowwise amp.dtype=float16": "say amp.dtype=bfloat16",
    "amp=o1 amp.gemm=fp8": "did you mean fp8-tensorwise?",
    "amp=fp8 batch=1 train.context=33": "33 on a device; change batch, or say amp=o2 amp.gemm=fp8-rowwise-gw-hp",
    "amp=o1 amp.gemm=fp9": "amp.gemm=fp9 is not one of half, fp8-tensorwise",
    "amp=o1 amp.gemm_exclude=[head]": "with amp.gemm=half: no layer is converted",
    "amp=fp8 amp.deny=[linear]": "name layers in amp.gemm_exclude or amp.keep_fp32",
}


def refusal(recipe: str, words: list[str], framework: str = "torch") -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        settings.check_settings(parse(words, recipe, framework).settings)
    return caught.value


@pytest.mark.parametrize("line", WORDS)
def test_wrong_words_are_refused_with_what_is_wrong(line):
    assert WORDS[line] in str(refusal("mnist", line.split(" ")))


@pytest.mark.parametrize("line", HYPER_PARAMETERS)
def test_a_hyper_parameter_that_makes_no_sense_is_refused(line):
    recipe, word = line.split(" ")
    error = refusal(recipe, [word])
    assert str(error) == f"{word} {HYPER_PARAMETERS[line]}"
    assert error.key == word.partition("=")[0]


@pytest.mark.parametrize("line", ONE_OF_SEVERAL)
def test_one_wrong_number_of_several_is_named(line):
    recipe, word = line.split(" ")
    error = refusal(recipe, [word])
    assert (str(error), error.key) == (ONE_OF_SEVERAL[line], word.partition("=")[0])


@pytest.mark.parametrize("line", {**PRECISION, **LOSS_SCALE})
def test_a_precision_or_loss_scale_that_no_device_has_is_refused(line):
    words = line.split(" ")
    framework = words.pop(0).partition("=")[2] if words[0].startswith("framework=") else "torch"
    error = refusal("mnist", words, framework)
    assert {**PRECISION, **LOSS_SCALE}[line] in str(error)
    if line in LOSS_SCALE:
        assert str(error).startswith(f"{error.key}=") and error.key == words[-1].partition("=")[0]


@pytest.mark.parametrize("line", GEMM)
def test_a_number_format_that_a_network_cannot_have_is_refused(line):
    assert GEMM[line] in str(refusal("gpt", line.split(" ")))


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (SettingsError("checkpoint.keep=0 must be at least 1"), "checkpoint.keep"),
        (SettingsError("secrets.token: there is no such file"), "secrets.token"),
        (SettingsError("recipe=gpt needs more memory", "train"), "train"),
        (SettingsError("write a,b=c"), ""),
    ],
)
def test_a_refusal_is_of_the_key_that_it_begins_with_unless_it_names_another(error, key):
    assert error.key == key
