"""The second observer: what it reads in the profiler's tree, and where it disagrees with the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import record_function

from amp_launcher.torch.observe import profiler_audit
from amp_launcher.torch.observe.calls import Call

HALF, WHOLE = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)


def read(compute: Callable[[], object], *listed: str) -> profiler_audit.Audit:
    with profiler_audit.Recording() as recording:
        compute()
    return profiler_audit.read(recording.profile, listed)


def test_products_are_read_in_order_with_the_function_called_and_the_dtypes_after_autocast() -> None:
    def compute() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.mm(WHOLE, WHOLE)
            torch.nn.functional.linear(WHOLE, WHOLE, WHOLE[0])
            torch.nn.functional.mse_loss(HALF, HALF)
            torch.relu(HALF)
        WHOLE @ WHOLE

    audit = read(compute, "mm", "mse_loss", "relu")
    assert [(*call.functions, call.operation, call.operands[0]) for call in audit.calls] == [
        ("mm", "mm", ("bfloat16", (4, 4))),
        ("linear", "addmm", ("bfloat16", (4, 4))),
        ("matmul", "mm", ("float32", (4, 4))),
    ]
    assert dict(audit.listed) == {
        ("mm", ("bfloat16", "bfloat16")): 1,
        ("mse_loss", ("float32", "float32")): 1,
        ("relu", ("bfloat16",)): 1,
    }


@pytest.mark.parametrize("range_name", [profiler_audit.PROBE, "compile_fx_inner (dynamo_timed)"])
def test_products_of_the_observer_and_of_compiling_and_shapes_traced_without_memory_are_left_out(
    range_name: str,
) -> None:
    def compute() -> None:
        with record_function(range_name):
            WHOLE @ WHOLE
        with FakeTensorMode():
            torch.empty(4, 4) @ torch.empty(4, 4)
        HALF @ HALF

    assert [call.operands[0][0] for call in read(compute).calls] == ["bfloat16"]


CALL = Call(operation="mm", backward=False, operands=(("bfloat16", (4, 4)),) * 2, flops=128, device="cpu")
SEEN = Call(operation="mm", backward=False, operands=CALL.operands, functions=("matmul",))
FLOAT32 = (("float32", (4, 4)),) * 2


OTHER_SHAPES = (("bfloat16", (4, 8)), ("bfloat16", (8, 4)))


@pytest.mark.parametrize(
    ("calls", "profiled", "agree"),
    [
        ([CALL, CALL], [SEEN, SEEN], True),
        ([CALL], [replace(SEEN, operands=FLOAT32)], False),
        ([CALL], [replace(SEEN, operands=OTHER_SHAPES)], False),
        ([CALL], [replace(SEEN, backward=True)], False),
        ([CALL], [replace(SEEN, operation="bmm")], False),
        ([CALL], [], False),
        ([CALL], [SEEN, SEEN], False),
    ],
)
def test_both_observers_agree_on_dtype_shape_phase_operation_and_number(
    calls: list[Call], profiled: list[Call], agree: bool
) -> None:
    problem = profiler_audit.disagreement(calls, profiler_audit.Audit(calls=profiled))
    assert problem == "" if agree else problem.startswith("the dispatch mode saw")


@pytest.mark.parametrize(
    ("profiled", "agree"),
    [
        ([], True),
        ([SEEN], True),
        ([SEEN] * 3, False),
        ([replace(SEEN, operands=FLOAT32)], False),
        ([replace(SEEN, backward=True)], False),
    ],
)
def test_compiled_code_may_call_fewer_library_products_than_its_graphs_have_and_no_others(
    profiled: list[Call], agree: bool
) -> None:
    audit = profiler_audit.Audit(calls=[replace(call, compiled=True) for call in profiled])
    problem = profiler_audit.disagreement([replace(CALL, compiled=True)] * 2, audit)
    assert problem == "" if agree else problem.startswith("compiled ")
