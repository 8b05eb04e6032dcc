"""Kernels by their names: those that documentation and published traces show, and those of a step of `gpt` on an H200
with torch 2.11 and CUDA 13.0."""

from __future__ import annotations

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


# In float32 the kernels of attention multiply in three TF32 products each, as exact as float32, from Ampere on.
RECORDED_TENSOR = [
    "nvjet_sm90_tst_32x64_64x16_4x2_h_bz_NTN",
    "nvjet_sm90_qqtst_64x48_128x15_2x4_h_bz_TNT",
    "nvjet_sm90_qrtst_64x8_128x16_2x4_h_bz_algo2_TNT",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>)",
]
RECORDED_MATRICES = [
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(Params)",
]
RECORDED_OTHERS = [
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u, 256u>(long)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>()",
    "void cudnn::fusion::compute_dot_do_o<true>(void const*, void const*, void*, void*)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>()",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true, false>(float*, float const*, int)",
    "triton_poi_fused__unsafe_view_cat_mul_silu_silu_backward_split_view_3",
]


def test_what_a_gpu_ran_is_known_by_its_names():
    recorded = [*RECORDED_TENSOR, *RECORDED_MATRICES, *RECORDED_OTHERS]
    assert [name for name in recorded if uses_tensor_cores(name)] == RECORDED_TENSOR
    assert [name for name in recorded if multiplies_matrices(name)] == [*RECORDED_TENSOR, *RECORDED_MATRICES]


def test_names_are_shown_without_what_fills_lines():
    assert short_name(RECORDED_OTHERS[0]) == "at::native::GammaBetaBackwardCUDAKernelTemplate"
    assert short_name(RECORDED_TENSOR[0]) == RECORDED_TENSOR[0]


def test_names_of_tensor_core_kernels_are_known_and_other_names_are_not():
    assert [name for name in (*TENSOR, *PLAIN) if uses_tensor_cores(name)] == TENSOR


def test_the_share_is_of_the_time_of_kernels_and_copies_are_none():
    assert tensor_core_share({TENSOR[0]: 30.0, PLAIN[0]: 70.0, "Memcpy HtoD (Pinned -> Device)": 900.0}) == 0.3
    assert tensor_core_share({}) is None
    assert tensor_core_share({"Memset (Device)": 4.0}) is None
