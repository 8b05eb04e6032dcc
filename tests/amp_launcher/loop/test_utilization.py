"""How much of the devices' arithmetic a model uses."""

from __future__ import annotations

import pytest

from amp_launcher.loop.utilization import TokenWork, matrix_share, peak, utilization


@pytest.mark.parametrize(
    ("gpu", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "float16", 756.0),
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA A100 80GB PCIe", "bfloat16", 312.0),
        ("Tesla V100-SXM2-32GB", "float16", 125.0),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("NVIDIA GH200 144G HBM3e", "tf32", 494.7),
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA B200", "tf32", 1100.0),
        ("NVIDIA GB200", "float16", 2500.0),
        ("NVIDIA GB200", "float32", 80.0),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "bfloat16", 480.0),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "tf32", 250.0),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "float32", 110.0),
    ],
)
def test_the_dense_peak_is_that_of_the_card_and_the_dtype(gpu, dtype, teraflops):
    assert peak(gpu, dtype) == teraflops * 1e12


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        (None, "float32"),
        ("Tesla V100-SXM2-32GB", "bfloat16"),
        ("NVIDIA GeForce RTX 4090", "float16"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "float16"),
    ],
)
def test_a_peak_that_is_not_known_gives_no_share(gpu, dtype):
    assert utilization(1000.0, TokenWork(per_sample=1, flops=6), gpu, dtype, 1) is None


def test_the_share_is_of_all_devices():
    work = TokenWork(per_sample=1024, flops=6 * 10**9)
    assert utilization(208_000.0, work, "NVIDIA A100-SXM4-80GB", "bfloat16", 8) == pytest.approx(0.5)
    assert utilization(None, work, "NVIDIA A100-SXM4-80GB", "bfloat16", 8) is None
    assert utilization(208_000.0, work, "NVIDIA A100-SXM4-80GB", "bfloat16", 8, "fp8-tensorwise") is None


@pytest.mark.parametrize(
    ("flops", "seconds", "gpu", "share"),
    [
        (67 * 10**9, 0.1, "NVIDIA H100 80GB HBM3", 0.01),
        (67 * 10**12, 0.5, "NVIDIA H100 80GB HBM3", 1.0),
        (67 * 10**9, 0.1, None, None),
        (67 * 10**9, None, "NVIDIA H100 80GB HBM3", None),
        (None, 0.1, "NVIDIA H100 80GB HBM3", None),
    ],
)
def test_the_share_of_matrix_products_is_at_the_peak_of_float32(flops, seconds, gpu, share):
    assert matrix_share(flops, seconds, gpu) == (None if share is None else pytest.approx(share))
