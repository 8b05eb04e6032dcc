"""The second observer: what it reads in the profiler's tree, and where it disagrees with the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import record_function

from recipes.torch_.observe import profiler_audit
from recipes.torch_.observe.calls import Call

HALF, WHOLE = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)


def read(compute: Callable[[], object], *listed: str) -> profiler_audit.Audit:
    with profiler_audit.profiler() as profile:
        compute()
    return profiler_audit.read(profile, listed)


def test_products_are_read_in_order_with_the_dtypes_they_ran_in_and_the_function_called() -> None:
    def compute() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.mm(WHOLE, WHOLE)
            torch.nn.functional.linear(WHOLE, WHOLE, WHOLE[0])
        WHOLE @ WHOLE

    found = [(each.function, each.operation, each.operands[0]) for each in read(compute).eager]
    assert found == [
        ("mm", "mm", ("bfloat16", (4, 4))),
        ("linear", "addmm", ("bfloat16", (4, 4))),
        ("matmul", "mm", ("float32", (4, 4))),
    ]


def test_the_dtypes_of_listed_functions_are_those_after_autocast() -> None:
    def compute() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.mm(WHOLE, WHOLE)
            torch.nn.functional.mse_loss(HALF, HALF)
            torch.relu(HALF)

    assert dict(read(compute, "mm", "mse_loss", "relu").listed) == {
        ("mm", ("bfloat16", "bfloat16")): 1,
        ("mse_loss", ("float32", "float32")): 1,
        ("relu", ("bfloat16",)): 1,
    }


@pytest.mark.parametrize("range_name", [profiler_audit.PROBE, "compile_fx_inner (dynamo_timed)"])
def test_the_observers_own_products_and_those_of_compiling_are_left_out(range_name: str) -> None:
    def compute() -> None:
        with record_function(range_name):
            WHOLE @ WHOLE
        HALF @ HALF

    assert [each.operands[0][0] for each in read(compute).eager] == ["bfloat16"]


def test_shapes_traced_without_memory_are_no_products() -> None:
    def compute() -> None:
        with FakeTensorMode():
            torch.empty(4, 4) @ torch.empty(4, 4)

    assert read(compute).eager == []


CALL = Call(operation="mm", backward=False, operands=(("bfloat16", (4, 4)),) * 2, flops=128, device="cpu")
SEEN = profiler_audit.ProfiledCall(operation="mm", backward=False, operands=CALL.operands, function="matmul", start=0)
FLOAT32 = (("float32", (4, 4)),) * 2


def test_the_same_calls_agree() -> None:
    assert profiler_audit.disagreement([CALL, CALL], profiler_audit.Audit(eager=[SEEN, SEEN])) == ""


@pytest.mark.parametrize(
    "seen",
    [
        [replace(SEEN, operands=FLOAT32)],
        [replace(SEEN, operands=(("bfloat16", (4, 8)), ("bfloat16", (8, 4))))],
        [replace(SEEN, backward=True)],
        [replace(SEEN, operation="bmm")],
        [],
        [SEEN, SEEN],
    ],
)
def test_another_dtype_shape_phase_operation_or_number_is_a_disagreement(
    seen: list[profiler_audit.ProfiledCall],
) -> None:
    assert profiler_audit.disagreement([CALL], profiler_audit.Audit(eager=seen)).startswith("the dispatch mode saw")


def test_compiled_code_may_call_fewer_library_products_than_its_graphs_have() -> None:
    compiled = [replace(CALL, compiled=True), replace(CALL, compiled=True)]
    assert profiler_audit.disagreement(compiled, profiler_audit.Audit(compiled=[SEEN])) == ""
    assert profiler_audit.disagreement(compiled, profiler_audit.Audit()) == ""


@pytest.mark.parametrize("seen", [[SEEN] * 3, [replace(SEEN, operands=FLOAT32)], [replace(SEEN, backward=True)]])
def test_compiled_code_may_call_none_that_its_graphs_do_not_have(seen: list[profiler_audit.ProfiledCall]) -> None:
    compiled = [replace(CALL, compiled=True), replace(CALL, compiled=True)]
    assert profiler_audit.disagreement(compiled, profiler_audit.Audit(compiled=seen)).startswith("compiled ")
