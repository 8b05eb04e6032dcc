"""Where NCCL's flight recorder is switched on. Without a GPU that is its variables; torch's part has not been seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from amp_launcher.around import wrap
from amp_launcher.precision.levels import NO_CLAIM, Amp
from amp_launcher.settings import Settings, Watch
from amp_launcher.torch import devices, flight_recorder, wrapper
from amp_launcher.torch.flight_recorder import NEWER
from amp_launcher.torch.loop import Run

RANK = {"RANK": "1", "WORLD_SIZE": "2"}
FILE = NEWER[flight_recorder.FILE] if torch.torch_version.__version__ >= (2, 10) else flight_recorder.FILE
VARIABLES = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/runs/one/attempts/3/nccl-rank",
}


def added(
    environ: dict[str, str],
    device: str = "cuda",
    run: Path | None = Path("/runs/one"),
    version: tuple[int, int] = (2, 9),
    **keys: object,
) -> dict[str, str]:
    before = {"LAUNCHER_ATTEMPT": "3", **environ}
    after = dict(before)
    flight_recorder.switch_on(Settings(train=None, **keys), run, device, after, version)
    assert before.items() <= after.items()
    return dict(after.items() - before.items())


def test_ranks_on_gpus_leave_their_last_collectives_in_the_folder_of_the_attempt() -> None:
    assert added(RANK) == VARIABLES
    assert added(RANK, version=(2, 10)) == {NEWER.get(name, name): value for name, value in VARIABLES.items()}


@pytest.mark.parametrize("name", [*VARIABLES, *NEWER.values()])
def test_what_the_user_set_stays_by_either_name(name: str) -> None:
    names = {key: {key, NEWER.get(key, key)} for key in VARIABLES}
    assert added({**RANK, name: "0"}) == {key: VARIABLES[key] for key in VARIABLES if name not in names[key]}


def test_nothing_is_set_where_there_is_no_collective_of_nccl_or_nobody_looks() -> None:
    assert added({}) == added(RANK, device="cpu") == added(RANK, run=None) == {}
    assert added(RANK, watchdog=Watch(after=0.0)) == added(RANK, amp=Amp(preset=NO_CLAIM)) == {}


def test_a_script_starts_with_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with_ranks(monkeypatch)
    gpu = (torch.device("cuda", 1), (9, 0))
    monkeypatch.setattr(wrapper, "device_and_capability", lambda name, environ: gpu)
    wrapper.TorchWrapper(wrap.parse([f"script={tmp_path}/train.py", "amp=o0", f"run={tmp_path}"], "torch"))
    assert os.environ[FILE] == f"{tmp_path}/attempts/1/nccl-rank"


def test_a_recipe_has_the_variables_when_its_ranks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ranks(monkeypatch)
    seen: list[str | None] = []

    def join(*_: object, **__: object) -> None:
        seen.append(os.environ.get(FILE))
        raise InterruptedError

    monkeypatch.setattr(devices, "join", join)
    chosen = wrap.arguments.parse(["device=cuda", "data=digits", f"run={tmp_path}"], "mnist", "torch")
    with pytest.raises(InterruptedError):
        Run.join(chosen, 0.0)
    assert seen == [f"{tmp_path}/attempts/1/nccl-rank"]


def with_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    for name in (*VARIABLES, *NEWER.values(), "LAUNCHER_ATTEMPT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
