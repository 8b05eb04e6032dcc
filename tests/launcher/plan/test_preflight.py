"""Advice of a plan on its GPUs: sizes for tensor cores, memory, builds of frameworks, epsilons."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.errors import UsageError
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts, TorchBuild
from tests.launcher.hosts import LAPTOP, TWO_A100, TWO_V100, gpu, spec_of

ONE_V100 = dataclasses.replace(TWO_V100, gpus=TWO_V100.gpus[:1])
ONE_A100 = dataclasses.replace(TWO_A100, gpus=TWO_A100.gpus[:1])


def advice(facts: Facts, *words: str) -> tuple[str, ...]:
    return resolve(spec_of(*words), facts).advice


def test_layers_that_defeat_tensor_cores_are_named_with_their_sizes() -> None:
    words = ("recipe=gan", "data=synthetic", "amp=o1", "train.channels=[63,63,31,7]", "batch=4090")
    sizes, batch = advice(ONE_V100, *words)
    assert sizes == (
        "tensor cores want multiples of 8 in float16: generator.dense 100 -> 3087, generator.conv1 63 -> 63, "
        "generator.conv2 63 -> 31, generator.conv3 31 -> 7 and 2 more"
    )
    assert batch == "tensor cores want multiples of 8 in float16: the batch per device is 4090"


def test_the_batch_is_that_of_one_device_and_micro_batch() -> None:
    words = ("recipe=simplenet", "amp=o2", "batch=48", "accumulate=2")
    assert advice(ONE_V100, *words) == ()
    assert advice(TWO_V100, *words) == (
        "tensor cores want multiples of 8 in float16: the batch per device and micro-batch is 12",
    )


def test_of_text_the_rows_of_a_product_are_tokens_and_the_vocabulary_is_a_layers_size() -> None:
    words = ("recipe=gpt", "amp=o2", "batch=3")
    assert advice(ONE_A100, *words) == ()
    assert advice(ONE_A100, *words, "train.vocab_size=50257") == (
        "tensor cores want multiples of 8 in bfloat16 (fastest: 64): head 128 -> 50257",
    )
    assert advice(ONE_A100, *words, "train.context=63") == (
        "tensor cores want multiples of 8 in bfloat16 (fastest: 64): the batch per device is 3",
    )


def test_the_fastest_sizes_are_those_of_the_gpus_generation() -> None:
    words = ("recipe=simplenet", "amp=o2", "amp.dtype=float16", "batch=50")
    (said,) = advice(ONE_V100, *words)
    assert said == "tensor cores want multiples of 8 in float16: the batch per device is 50"
    for capability in ("8.0", "8.9", "12.0"):
        (said,) = advice(dataclasses.replace(LAPTOP, gpus=(gpu(0, capability),)), *words)
        assert said == "tensor cores want multiples of 8 in float16 (fastest: 64): the batch per device is 50"


def test_three_channels_at_the_first_convolution_are_accepted_with_a_hint_at_four() -> None:
    assert advice(ONE_A100, "recipe=resnet50", "amp=o2") == (
        "stem takes 3 channels: 4, padded, are faster on tensor cores",
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ONE_V100, ("amp=o0",)),
        (LAPTOP, ("amp=o2",)),
        (ONE_A100, ("amp=o0", "tf32=false")),
    ],
)
def test_where_no_tensor_core_is_used_there_is_no_advice_on_sizes(facts: Facts, words: tuple[str, ...]) -> None:
    assert advice(facts, "recipe=gan", "data=synthetic", "train.channels=[63,63,31,7]", *words) == ()


def test_tf32_wants_multiples_of_four() -> None:
    sizes = advice(ONE_A100, "recipe=simplenet", "amp=o0", "tf32=true", "train.width=8196", "batch=2050")
    assert sizes == ("tensor cores want multiples of 4 in TF32 (fastest: 32): the batch per device is 2050",)


def test_paddles_cpu_build_is_refused_on_gpus_with_the_package_for_them() -> None:
    facts = dataclasses.replace(ONE_V100, packages={"paddle": "3.3.1+cpu"})
    with pytest.raises(UsageError, match=r"and there are GPUs; install paddlepaddle-gpu instead of paddlepaddle"):
        resolve(spec_of("framework=paddle", "recipe=simplenet", "gpus=1"), facts)


def test_a_framework_that_setup_may_load_is_not_asked_of_the_hosts_python() -> None:
    there = dataclasses.replace(LAPTOP, packages={})
    loaded = resolve(spec_of("recipe=gpt", "cluster.setup=[load_torch]"), there)
    assert "not checked: torch with what cluster.setup loads; a run ends at once without it" in loaded.advice
    with pytest.raises(UsageError, match="framework=torch is not installed for /opt/venv/bin/python on box"):
        resolve(spec_of("recipe=gpt"), there)


@pytest.mark.parametrize(
    ("facts", "version", "words", "says"),
    [
        (LAPTOP, "2.8.1+cpu", "parallel=fsdp", "parallel=fsdp needs torch 2.9 or newer, and this is 2.8.1+cpu; say "),
        (LAPTOP, "2.8.1+cpu", "parallel=ddp", ""),
        (LAPTOP, "2.10.0", "parallel=fsdp", ""),
        (LAPTOP, "unknown", "parallel=fsdp", ""),
        (LAPTOP, "2.8.1", "parallel=fsdp cluster.setup=[load_torch]", ""),
        (ONE_V100, "2.13.0+cpu", "gpus=1", "build without CUDA, and there are GPUs; install torch's build for CUDA"),
        (
            ONE_V100,
            "2.13.0+cu130",
            "",
            "does not run on Tesla V100-SXM2-32GB (compute capability 7.0): it needs compute capability 7.5",
        ),
        (ONE_V100, "2.13.0+cpu", "device=cpu gpus=0", ""),
        (ONE_V100, "2.13.0+cpu", "cluster.setup=[load_torch]", ""),
        (ONE_V100, "2.6.0+cu126", "", ""),
    ],
)
def test_a_torch_that_cannot_shard_or_use_the_gpus_is_refused(
    facts: Facts, version: str, words: str, says: str
) -> None:
    spec = spec_of("recipe=gpt", *words.split())
    there = dataclasses.replace(facts, packages={"torch": version})
    if not says:
        resolve(spec, there)
        return
    with pytest.raises(UsageError) as refused:
        resolve(spec, there)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("cuda", "architectures", "capability", "driver", "says"),
    [
        (
            "13.0",
            "sm_75 sm_80",
            "8.0",
            "550.54.15",
            "is for CUDA 13.0, which needs driver 580.65, and this host has 550",
        ),
        (
            "12.8",
            "sm_75 sm_80 sm_90",
            "7.0",
            "570.86.15",
            "(compute capability 7.0): it has code for sm_75, sm_80, sm_9",
        ),
        ("12.6", "sm_80 sm_90", "10.0", "580.82.07", "(compute capability 10.0): it has code for sm_80, sm_90"),
        ("12.6", "sm_86", "8.0", "580.82.07", "(compute capability 8.0): it has code for sm_86"),
        ("12.8", "sm_100a sm_120", "10.3", "580.82.07", "(compute capability 10.3): it has code for"),
        ("12.9", "sm_90a", "9.0", "580.82.07", ""),
        ("12.9", "sm_100f", "10.3", "580.82.07", ""),
        ("12.6", "sm_80 compute_90", "12.0", "580.82.07", ""),
        ("12.6", "sm_80 sm_86", "8.9", "580.82.07", ""),
        ("12.6", "", "8.0", "580.82.07", ""),
        ("12.6", "odd", "8.0", "580.82.07", "it has code for odd"),
        ("", "", "8.0", "580.82.07", "torch 2.13.0 is a build without CUDA"),
    ],
)
def test_what_torch_itself_tells_of_its_build_is_held_against_gpu_and_driver(
    cuda: str, architectures: str, capability: str, driver: str, says: str
) -> None:
    card = dataclasses.replace(ONE_A100.gpus[0], capability=capability, driver=driver)
    build = TorchBuild(cuda=cuda, architectures=tuple(architectures.split()))
    facts = dataclasses.replace(ONE_A100, gpus=(card,), packages={"torch": "2.13.0"}, torch_build=build)
    if not says:
        resolve(spec_of(), facts)
        return
    with pytest.raises(UsageError) as refused:
        resolve(spec_of(), facts)
    assert says in str(refused.value)


def test_mig_instances_are_noted_once_and_their_memory_is_not_counted() -> None:
    cut = dataclasses.replace(ONE_A100, gpus=(dataclasses.replace(ONE_A100.gpus[0], memory_mib=0, partitioned=True),))
    assert advice(cut, "recipe=simplenet", "train.width=65536", "amp=o2") == (
        "GPU 0 is cut into MIG instances: a process sees the first of them alone, and how much memory that has isn't "
        "known here",
    )


def test_a_model_that_cannot_fit_is_refused_and_one_that_leaves_little_is_noted() -> None:
    small = dataclasses.replace(LAPTOP, gpus=(dataclasses.replace(gpu(0, "8.0", "A2"), memory_mib=8000),))
    # Nine layers of 8192 x 8192: 4.5 GiB in float32 with their gradients, half of that all in half.
    assert advice(small, "recipe=simplenet", "amp=o1") == (
        "weights and gradients take at least 4.5 GiB, what is kept of 2048 samples at once at least 0.3 GiB, "
        "and A2 has 7.8 GiB; optimizer state and the rest come on top",
    )
    assert advice(small, "recipe=simplenet", "amp=o3") == ()
    with pytest.raises(UsageError) as refused:
        resolve(spec_of("recipe=simplenet", "amp=o1", "train.width=16384"), small)
    assert str(refused.value) == (
        "recipe=simplenet with these settings needs 18.0 GiB for weights and gradients alone at amp=o1, and A2 has "
        "7.8 GiB; make the model smaller"
    )


def test_a_model_that_fits_in_shards_alone_is_refused_with_the_key_that_shards_it() -> None:
    cards = tuple(dataclasses.replace(gpu(index, "8.0", "A2"), memory_mib=8000) for index in range(2))
    two = dataclasses.replace(LAPTOP, gpus=cards)
    words = ("recipe=simplenet", "amp=o2", "train.width=14336", "gpus=2")
    with pytest.raises(UsageError, match=r"needs 13.8 GiB .* say parallel=fsdp, which shards it over them"):
        resolve(spec_of(*words), two)
    assert "weights and gradients take at least 6.9 GiB" in str(advice(two, *words, "parallel=fsdp"))
    with pytest.raises(UsageError, match="make the model smaller"):
        resolve(spec_of("recipe=simplenet", "train.width=16384", "gpus=2", "parallel=fsdp"), two)


# What ResNet-50's 53 convolutions put out for an image of 224 x 224 is 11.1 million numbers, most norms as many.
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("amp=o0", "batch=128"), ()),
        (("amp=o0", "batch=256"), ("what is kept of 256 samples at once at least 19.8 GiB", "come on top")),
        (("amp=o1", "batch=256"), ()),
        (("amp=o0", "batch=512"), ("runs out of memory, and no more than 408 would fit; say batch= or accumulate=",)),
        (("amp=o0", "batch=512", "compile=true"), ("at least 21.2 GiB", "come on top")),
        (("amp=o0", "batch=512", "accumulate=4"), ()),
    ],
)
def test_a_batch_too_large_for_the_gpu_is_noted_with_one_that_fits(
    words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    alone, shared = (
        [line for line in advice(facts, "recipe=resnet50", *words) if "GiB" in line] for facts in (ONE_V100, TWO_V100)
    )
    assert len(alone) == bool(says)
    assert all(say in alone[0] for say in says)
    assert not shared or "batch=512" in words, "each card gets half of the batch"


def test_tensorflow_in_bfloat16_on_a_cpu_is_noted_for_its_time() -> None:
    here = dataclasses.replace(LAPTOP, packages={"torch": "2.13.0", "tensorflow": "2.21.0"})
    words = ("recipe=mnist", "framework=tensorflow")
    (note,) = advice(here, *words, "amp=o1")
    assert "ten times one in float32" in note
    assert advice(here, *words, "amp=o0") == advice(here, "recipe=mnist", "framework=torch", "amp=o1") == ()


def test_an_epsilon_that_float16_loses_is_noted_once_with_a_remedy() -> None:
    for facts in (LAPTOP, ONE_V100):
        for framework in ("torch", "tensorflow"):
            words = ("recipe=gan", "data=synthetic", f"framework={framework}", "amp=o3", "amp.dtype=float16")
            there = dataclasses.replace(facts, packages={framework: "2.0"})
            (note,) = (line for line in advice(there, *words) if "epsilon" in line)
            assert "below 6.1e-05, Adam's 1e-07 and RMSprop's 1e-07, lets losses drift" in note
            assert "say amp.dtype=bfloat16, which holds the squares, or amp=o2" in note


@pytest.mark.parametrize("words", [("amp=o2",), ("amp=o3", "recipe=resnet50", "train.width=8")])
def test_an_optimizer_in_float32_or_without_epsilon_gets_no_such_note(words: tuple[str, ...]) -> None:
    assert advice(LAPTOP, "recipe=gan", "data=synthetic", "amp.dtype=float16", *words) == ()
