"""Kernels by their names. The names are those that documentation and published traces show; none was recorded here."""

from __future__ import annotations

from amp_launcher.precision.gpu_kernels import tensor_core_share, uses_tensor_cores

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


def test_names_of_tensor_core_kernels_are_known_and_other_names_are_not():
    assert [name for name in (*TENSOR, *PLAIN) if uses_tensor_cores(name)] == TENSOR


def test_the_share_is_of_the_time_of_kernels_and_copies_are_none():
    assert tensor_core_share({TENSOR[0]: 30.0, PLAIN[0]: 70.0, "Memcpy HtoD (Pinned -> Device)": 900.0}) == 0.3
    assert tensor_core_share({}) is None
    assert tensor_core_share({"Memset (Device)": 4.0}) is None
