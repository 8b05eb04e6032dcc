"""Kernels by their names: those that documentation and published traces show, and those of `gpt` on an H100 and an H200
with torch 2.11 and CUDA 13.0."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from amp_launcher.precision.gpu_kernels import multiplies_matrices, short_name, tensor_core_share, uses_tensor_cores

TENSOR = [
    "ampere_sgemm_tf32f32_128x64_nn",
    "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x128x16",
    "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x64x32",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_NNT",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "volta_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
    "turing_h1688gemm_128x128_ldg8_stages_32x1_nn",
    "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    "cutlass3x_sm90_tensorop_gemm_bf16_128x128x64_warpspecialized",
]
PLAIN = [
    "ampere_sgemm_128x64_nn",
    "volta_sgemm_32x128_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "triton_poi_fused_relu_0",
    "Memcpy HtoD (Pinned -> Device)",
]


PRODUCTS = {"mm", "addmm", "bmm", "_scaled_mm", "_cudnn_attention_forward", "_cudnn_attention_backward"}
PRODUCTS |= {"_efficient_attention_forward", "_efficient_attention_backward"}
HELPERS = ("void cublasLt::splitK", "void cudnn::fusion::compute_dot", "void cudnn::fusion::convert_dq")
"""Kernels that these operators launch besides those that multiply."""
RUNS = json.loads((Path(__file__).parents[2] / "fixtures/gpu/kernels_of_gpt.json").read_text())["runs"]


@pytest.mark.parametrize("run", RUNS)
def test_by_their_names_those_multiply_that_an_operator_of_products_launched(run: str) -> None:
    kernels = RUNS[run]["kernels"]
    by_operator = {name for operator, name, _ in kernels if operator.removeprefix("aten::") in PRODUCTS}
    expected = {name for name in by_operator if not name.startswith(HELPERS)}
    assert expected == {name for _, name, _ in kernels if multiplies_matrices(name)} != set()


@pytest.mark.parametrize("run", RUNS)
def test_the_share_of_a_recorded_run_is_that_of_its_result(run: str) -> None:
    """In float32 it is attention's, which multiplies in three TF32 products each, as exact as float32."""
    times: Counter[str] = Counter()
    for _, name, microseconds in RUNS[run]["kernels"]:
        times[name] += microseconds
    assert tensor_core_share(times) == pytest.approx(RUNS[run]["tensor_core_share"], abs=1e-3)
    products = [name for name in times if multiplies_matrices(name) and not uses_tensor_cores(name)]
    assert bool(products) == (run == "o0")


def test_names_are_shown_without_what_fills_lines():
    long = "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 256u>(long)"
    assert short_name(long) == "at::native::GammaBetaBackwardCUDAKernelTemplate"
    assert short_name("nvjet_sm90_tst_32x64_64x16_4x2_h_bz_NTN") == "nvjet_sm90_tst_32x64_64x16_4x2_h_bz_NTN"


def test_names_of_tensor_core_kernels_are_known_and_other_names_are_not():
    assert [name for name in (*TENSOR, *PLAIN) if uses_tensor_cores(name)] == TENSOR


def test_the_share_is_of_the_time_of_kernels_and_copies_are_none():
    assert tensor_core_share({TENSOR[0]: 30.0, PLAIN[0]: 70.0, "Memcpy HtoD (Pinned -> Device)": 900.0}) == 0.3
    assert tensor_core_share({}) is None
    assert tensor_core_share({"Memset (Device)": 4.0}) is None
