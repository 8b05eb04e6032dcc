"""The operations that `amp.allow` and `amp.deny` may name: in torch's spelling, in Paddle's, and in TensorFlow's.

Standard library only, so that an unknown name is refused before anything is queued.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from amp_launcher.typed import SettingsError, nearest

MATRIX = (
    "addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d einsum gru gru_cell linear lstm lstm_cell matmul mm multi_dot "
    "multi_head_attention_forward mv rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention"
)
NORMS = "batch_norm cosine_similarity group_norm instance_norm layer_norm local_response_norm normalize rms_norm"
ACTIVATIONS = (
    "celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish prelu relu relu6 selu "
    "sigmoid silu softmax softmin softplus softsign tanh"
)
POINTWISE = (
    "acos add addcdiv addcmul asin cosh div erf erfinv exp expm1 log log10 log1p log2 mul pow reciprocal rsqrt sinh "
    "sqrt square sub tan"
)
REDUCTIONS = "cdist cumprod cumsum dist logsumexp mean norm pdist prod renorm std sum var"
LOSSES = (
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss "
    "gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
    "multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss "
    "triplet_margin_loss"
)
OTHERS = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d cat dropout embedding embedding_bag grid_sample interpolate "
    "max_pool1d max_pool2d max_pool3d stack"
)

TORCH = frozenset(" ".join((MATRIX, NORMS, ACTIVATIONS, POINTWISE, REDUCTIONS, LOSSES, OTHERS)).split())

PADDLE = {
    "bce_loss": "binary_cross_entropy",
    "bilinear_interp_v2": "interpolate",
    "concat": "cat",
    "conv2d_transpose": "conv_transpose2d",
    "conv3d_transpose": "conv_transpose3d",
    "cos_sim": "cosine_similarity",
    "cross_entropy2": "cross_entropy",
    "depthwise_conv2d": "conv2d",
    "elementwise_add": "add",
    "elementwise_div": "div",
    "elementwise_mul": "mul",
    "elementwise_pow": "pow",
    "elementwise_sub": "sub",
    "flash_attn": "scaled_dot_product_attention",
    "grid_sampler": "grid_sample",
    "hard_sigmoid": "hardsigmoid",
    "hard_swish": "hardswish",
    "kldiv_loss": "kl_div",
    "linear_v2": "linear",
    "lookup_table_v2": "embedding",
    "matmul_v2": "matmul",
    "nearest_interp_v2": "interpolate",
    "p_norm": "norm",
    "reduce_mean": "mean",
    "reduce_prod": "prod",
    "reduce_sum": "sum",
    "sigmoid_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "softmax_with_cross_entropy": "cross_entropy",
    "swish": "silu",
    "sync_batch_norm": "batch_norm",
}
"""Paddle's operation names -> torch's. Where both use one name (`mul`, for instance), it means torch's operation."""

PADDLE_LACKS = frozenset(
    (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d addbmm addcdiv addcmul addmv addr avg_pool1d avg_pool2d avg_pool3d cdist chain_matmul "
        "conv1d conv_tbc conv_transpose1d cosine_embedding_loss cosine_similarity ctc_loss embedding_bag "
        "gaussian_nll_loss glu gru_cell hinge_embedding_loss l1_loss local_response_norm lstm_cell "
        "margin_ranking_loss max_pool1d max_pool2d max_pool3d mm mse_loss multi_head_attention_forward "
        "multi_margin_loss multilabel_margin_loss normalize pdist poisson_nll_loss rnn_relu rnn_relu_cell rnn_tanh "
        "rnn_tanh_cell smooth_l1_loss soft_margin_loss softmin triplet_margin_loss"
    ).split()
)
"""torch's operations that Paddle lacks: unknown names in its lists are ignored without an error. Source: the kernels
that 3.3 has registered."""

NAMES = TORCH | PADDLE.keys()


def canonical(names: Sequence[str], key: str) -> tuple[str, ...]:
    """The torch names of `names`, each once, in the order given. `key` is the setting that an error names.

    Raises `SettingsError` for a name that is no operation known here.
    """
    for name in names:
        if name not in NAMES:
            raise SettingsError(f"{key}: {name} is not an operation known here{nearest(name, sorted(NAMES))}", key)
    return tuple(dict.fromkeys(PADDLE.get(name, name) for name in names))


def lists(allow: Sequence[str], deny: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both lists in torch's names. Raises `SettingsError` for an unknown operation, and for one that is on both."""
    allowed, denied = canonical(allow, "amp.allow"), canonical(deny, "amp.deny")
    for operation in allowed:
        if operation in denied:
            spellings = dict.fromkeys(name for name in (*allow, *deny) if PADDLE.get(name, name) == operation)
            also = f" (as {' and '.join(spellings)})" if len(spellings) > 1 else ""
            raise SettingsError(f"{operation} is on both amp.allow and amp.deny{also}; leave it on one", "amp.allow")
    return allowed, denied


def paddle_lists(allow: Sequence[str], deny: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The same for Paddle. Raises `SettingsError` for an operation that it doesn't have, too."""
    names_by_list = lists(allow, deny)
    for key, names in zip(("amp.allow", "amp.deny"), names_by_list, strict=True):
        for name in names:
            if name in PADDLE_LACKS:
                raise SettingsError(f"{key}: Paddle has no operation {name}, and would pass over it in silence", key)
    return names_by_list


def in_paddle(names: Sequence[str]) -> list[str]:
    """Every name that Paddle has for these operations of torch's: its lists hold several, by an operation's age.

    `mul` isn't one of them: in Paddle it is an old name of the matrix product.
    """
    return [
        alias
        for name in names
        for alias in (name, *(paddles for paddles, torchs in PADDLE.items() if torchs == name))
        if alias != "mul"
    ]


TENSORFLOW = frozenset(
    (
        "Abs Add AddN AddV2 ArgMax ArgMin AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchMatMul BatchMatMulV2 "
        "BatchToSpace BatchToSpaceND BiasAdd BiasAddGrad BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 "
        "BroadcastTo Ceil CheckNumerics ClipByValue Concat ConcatV2 Conv2D Conv2DBackpropFilter Conv2DBackpropInput "
        "Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 CudnnRNN "
        "CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 DepthToSpace "
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput "
        "DynamicPartition DynamicStitch Einsum Elu EluGrad EnsureShape Enter Equal Erf Erfc Exit Exp ExpandDims Expm1 "
        "Fill Floor FloorDiv FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 "
        "FusedPadConv2D GRUBlockCell GRUBlockCellGrad Gather GatherNd GatherV2 Greater GreaterEqual Identity "
        "IdentityN Inv IsFinite IsInf IsNan L2Loss LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad Less "
        "LessEqual Log Log1p LogSoftmax MatMul Max MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad "
        "MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum Mean Merge Min Minimum MirrorPad "
        "MirrorPadGrad Mul Neg NextIteration NotEqual OneHot OnesLike Pack Pad PadV2 Pow PreventGradient Prod Rank "
        "RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Reshape ResizeBilinear ResizeNearestNeighbor "
        "ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 Round Rsqrt SaveV2 ScatterNd Select SelectV2 "
        "Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Size Slice Snapshot Softmax "
        "SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad SpaceToBatch SpaceToBatchND "
        "SpaceToDepth SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt Square SquaredDifference Squeeze "
        "StatelessWhile StopGradient StridedSlice StridedSliceGrad Sub Sum Switch Tanh TanhGrad TensorListConcat "
        "TensorListConcatLists TensorListConcatV2 TensorListFromTensor TensorListGather TensorListGetItem "
        "TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListScatter "
        "TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack Tile "
        "TopK TopKV2 Transpose Unpack Where While ZerosLike"
    ).split()
)
"""The operations on any list of TensorFlow's graph rewrite, for GPUs or for CPUs. Source: the lists that 2.21 writes to
TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH (`auto_mixed_precision_lists.h`), without NVIDIA's own additions.
Gradients have names of their own there: `Conv2DBackpropFilter` is another operation than `Conv2D`."""


TENSORFLOW_LISTS = ("allow", "deny", "infer", "clear")
"""The lists of TensorFlow's graph rewrite, under `amp`: always in half precision; never; in half precision unless after
a denied operation; as what is around it."""


def tensorflow_lists(lists: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Each of `TENSORFLOW_LISTS` with the gradients of its operations, which go where their operation goes unless they
    are named themselves. Raises `SettingsError` for an unknown operation, and for one that is on two lists.
    """
    places: dict[str, str] = {}
    for list_name in TENSORFLOW_LISTS:
        for name in lists.get(list_name, ()):
            if name not in TENSORFLOW:
                raise SettingsError(
                    f"amp.{list_name}: {name} is not an operation that TensorFlow's graph rewrite knows"
                    f"{nearest(name, sorted(TENSORFLOW))}",
                    f"amp.{list_name}",
                )
            before = places.setdefault(name, list_name)
            if before != list_name:
                raise SettingsError(
                    f"{name} is on both amp.{before} and amp.{list_name}; leave it on one", f"amp.{before}"
                )
    for name, list_name in list(places.items()):
        for gradient in tensorflow_gradients(name):
            places.setdefault(gradient, list_name)
    return {key: tuple(name for name, place in places.items() if place == key) for key in TENSORFLOW_LISTS}


def tensorflow_gradients(name: str) -> tuple[str, ...]:
    """The operations that compute the gradients of an operation: `Conv2DBackpropFilter` and `Conv2DBackpropInput`.

    A version in a name is that of its gradients: those of `FusedBatchNormV3` are in `FusedBatchNormGradV3`.
    """
    version = next(iter(re.findall(r"V\d+$", name)), None)
    stem = name.removesuffix(version or "")
    gradients = []
    for other in sorted(TENSORFLOW):
        match = re.fullmatch(rf"{stem}(?:Backprop(?:Input|Filter)?|Grad(?:Grad)?)(V\d+)?", other)
        of_another = match and match[1] != version and (version or f"{stem}{match[1]}" in TENSORFLOW)
        if match and not of_another:
            gradients.append(other)
    return tuple(gradients)
