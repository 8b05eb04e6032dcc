"""Which operations multiply matrices, and their work counted by hand."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp_launcher.precision import operations as lists
from amp_launcher.tensorflow.observe.products import PRODUCTS, base, flops, may_multiply


@pytest.mark.parametrize(
    ("fused", "plain"),
    [
        ("MatMul", "MatMul"),
        ("_FusedMatMul", "MatMul"),
        ("_MklMatMul", "MatMul"),
        ("_MklNativeFusedMatMul", "MatMul"),
        ("_FusedConv2D", "Conv2D"),
        ("_MklNativeFusedConv2D", "Conv2D"),
        ("_MklNativePadWithFusedConv2D", "Conv2D"),
        ("_MklNativeConv2DBackpropFilterWithBias", "Conv2DBackpropFilter"),
        ("_MklNativeDepthwiseConv2dNative", "DepthwiseConv2dNative"),
        ("_MklFusedBatchMatMulV2", "BatchMatMulV2"),
        ("FusedBatchNormV3", "FusedBatchNormV3"),
    ],
)
def test_what_was_fused_or_taken_over_is_known_by_its_own_name(fused, plain):
    assert base(fused) == plain


def test_every_product_is_an_operation_of_this_tensorflow():
    assert [name for name in PRODUCTS if not hasattr(tf.raw_ops, name)] == []


def test_every_operation_that_the_launcher_knows_is_one_of_this_tensorflow():
    assert sorted(name for name in lists.TENSORFLOW if not hasattr(tf.raw_ops, name)) == []


def test_what_else_may_multiply_is_not_overlooked():
    assert all(
        map(may_multiply, ("CudnnRNNV3", "SparseMatMul", "EagerPyFunc", "XlaConvV2", "_XlaRun", "LSTMBlockCell"))
    )
    assert not any(map(may_multiply, ("BiasAdd", "Relu", "AssignVariableOp", "FusedBatchNormV3", "Cast")))


@pytest.mark.parametrize(
    ("operation", "inputs", "output", "options", "expected"),
    [
        ("MatMul", [(8, 32)], (8, 64), {}, 2 * 8 * 32 * 64),
        ("MatMul", [(32, 8)], (8, 64), {"transposed": True}, 2 * 8 * 32 * 64),
        ("BatchMatMulV2", [(5, 8, 32)], (5, 8, 64), {}, 5 * 2 * 8 * 32 * 64),
        ("Einsum", [(5, 8, 32), (32, 64)], (5, 8, 64), {"equation": "abc,cd->abd"}, 5 * 2 * 8 * 32 * 64),
        ("Einsum", [(5, 8, 32), (32, 64)], (5, 8, 64), {"equation": "...c,cd->...d"}, 5 * 2 * 8 * 32 * 64),
        ("Conv2D", [(4, 12, 12, 3), (3, 3, 3, 16)], (4, 10, 10, 16), {}, 2 * 4 * 100 * 16 * 27),
        ("Conv2D", [(4, 12, 12, 8), (3, 3, 2, 16)], (4, 10, 10, 16), {}, 2 * 4 * 100 * 16 * 18),
        ("DepthwiseConv2dNative", [(4, 12, 12, 8), (3, 3, 8, 2)], (4, 10, 10, 16), {}, 2 * 4 * 100 * 16 * 9),
        ("Conv2DBackpropInput", [(4,), (3, 3, 3, 16), (4, 10, 10, 16)], (4, 12, 12, 3), {}, 2 * 4 * 100 * 16 * 27),
        ("Conv2DBackpropFilter", [(4, 12, 12, 3), (4,), (4, 10, 10, 16)], (3, 3, 3, 16), {}, 2 * 4 * 100 * 16 * 27),
    ],
)
def test_work_is_what_a_hand_count_gives(operation, inputs, output, options, expected):
    assert flops(operation, inputs, output, **options) == expected
