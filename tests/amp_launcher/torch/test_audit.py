"""The second observer: what it reads in the profiler's tree, and where it disagrees with the first."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._profiler import _EventType
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import record_function

from amp_launcher.torch.observe import profiler_audit, step_observer
from amp_launcher.torch.observe.calls import Call
from amp_launcher.torch.observe.recording import Recording

HALF, WHOLE = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)


def read(compute: Callable[[], object], *listed: str) -> profiler_audit.Audit:
    with Recording() as recording:
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


def _event(name: str, *children: Any, launched: bool = False, start: int = 0) -> Any:
    """An event of the profiler's tree, as CUDA's records make them: operation, launch, kernel."""
    matrix = SimpleNamespace(storage_data_ptr=1, dtype=torch.float32, sizes=[4, 4])
    return SimpleNamespace(
        name=name,
        children=children,
        tag=_EventType.Kineto if launched else _EventType.TorchOp,
        extra_fields=SimpleNamespace(inputs=[matrix] * 8, sequence_number=-1),
        start_time_ns=start,
        end_time_ns=start + 1,
    )


def _audit(*events: Any, counted: tuple[str, ...] = ()) -> profiler_audit.Audit:
    results = SimpleNamespace(experimental_event_tree=lambda: events)
    return profiler_audit.read(SimpleNamespace(kineto_results=results), (), counted)


NVJET = "nvjet_sm90_tst_32x64_64x16_4x2_h_bz_NTN"


def test_matrix_kernels_that_no_counted_operation_launched_are_named_with_what_did() -> None:
    gemm = _event("cudaLaunchKernel", _event(NVJET, launched=True), launched=True)
    add = _event("cudaLaunchKernel", _event("void at::native::add<float>()", launched=True), launched=True)
    audit = _audit(
        _event("mylib::product", gemm),  # counted as a whole
        _event("aten::hidden", gemm, add),
        _event("flash_attn::forward", gemm),
        _event("autograd::engine::evaluate_function: FlashBackward", gemm),  # autograd's range is no operator
        _event("## Call CompiledFxGraph abc ##", gemm, start=5),  # counted by its graph
        gemm,
        counted=("mylib::product",),
    )
    assert audit.kernels == 2
    assert audit.uncounted == {(NVJET, "hidden"): 1, (NVJET, "flash_attn::forward"): 1, (NVJET, ""): 2}


@pytest.mark.parametrize("range_name", ["## Call CompiledFxGraph abc ##", "compile_fx_inner (dynamo_timed)"])
def test_a_graph_that_is_replayed_is_compiled_codes_by_the_time_of_its_launch(range_name: str) -> None:
    """It belongs to no range in the tree: one of a script's own in the same step is named."""

    def replay(start: int) -> Any:
        late = _event(NVJET, launched=True, start=90)  # when the GPU came to it
        return _event("cudaGraphLaunch", late, launched=True, start=start)

    compiled = _event(range_name, start=10)
    compiled.end_time_ns = 20
    audit = _audit(compiled, replay(15), replay(30))
    assert (audit.kernels, dict(audit.uncounted)) == (1, {(NVJET, ""): 1})


def test_kernels_of_the_observers_own_arithmetic_are_not_those_of_the_operation_around_it() -> None:
    kernel = _event("cudaLaunchKernel", _event(NVJET, launched=True), launched=True, start=10)
    probe = _event(profiler_audit.PROBE, start=5)
    probe.end_time_ns = 20
    audit = _audit(_event("aten::mm", probe, _event("aten::mm", kernel, start=6)))
    assert (len(audit.calls), audit.kernels) == (1, 0)


def test_when_a_gpu_worked_on_an_optimizers_step_hides_no_later_operation() -> None:
    on_gpu = _event(f"{profiler_audit.OPTIMIZER}SGD.step", launched=True, start=0)
    on_gpu.end_time_ns = 100
    assert [call.operation for call in _audit(on_gpu, _event("aten::mm", start=50)).calls] == ["mm"]


def _recorded(event: Any, times: Iterator[int]) -> Any:
    name, kind, children = event
    start = next(times)
    made = _event(name, *(_recorded(child, times) for child in children), launched=kind == "Kineto", start=start)
    made.end_time_ns = next(times)
    return made


@pytest.mark.parametrize(("mode", "kernels", "uncounted"), [("o0", 14, 0), ("o1", 15, 0), ("o1_replay", 0, 2)])
def test_each_matrix_kernel_that_an_h200_ran_belongs_to_a_counted_operation(
    mode: str, kernels: int, uncounted: int
) -> None:
    """But those of a graph of CUDA that was captured, of which no dispatcher knows when it is replayed."""
    trees = json.loads((Path(__file__).parents[2] / "fixtures/gpu/profiler_trees.json").read_text())
    times = itertools.count()
    audit = _audit(*(_recorded(event, times) for event in trees[mode]))
    assert (audit.kernels, audit.uncounted.total()) == (kernels, uncounted)


@pytest.mark.parametrize(("capability", "judged"), [((9, 0), True), ((8, 0), False), (None, False)])
def test_kernels_that_no_operator_launched_change_the_verdict_where_a_day_was_recorded(
    capability: tuple[int, int] | None, judged: bool
) -> None:
    uncounted = {(NVJET, ""): 2, (NVJET, "linalg_det"): 1}
    beside, alone = step_observer.of_no_counted_operation(uncounted, capability)
    assert alone == ({NVJET: 2} if judged else {})
    assert beside == {f"{NVJET} in linalg_det": 1} | ({} if judged else {f"{NVJET} in no operation": 2})
