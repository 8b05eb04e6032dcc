"""The first day on a GPU, rehearsed, and what of a machine goes into its folder."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.day import __main__ as days
from benchmarks.day import machine
from benchmarks.day.checks import Check, Day, LeftOut, Part
from benchmarks.day.parts import CHECKS, newest_ngc, parts, spread
from tests.launcher import warm

REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Mon Nov 23 2026</timestamp>
  <driver_version>550.54</driver_version>
  <gpu id="00000000:C1:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <serial>1650123456789</serial>
    <uuid>GPU-11111111-2222-3333-4444-555555555555</uuid>
    <board_id>0xc100</board_id>
    <pci><pci_bus_id>00000000:C1:00.0</pci_bus_id></pci>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
    <processes>
      <process_info><pid>4711</pid><process_name>/home/someone/train.py</process_name></process_info>
    </processes>
    <accounted_processes></accounted_processes>
    <something_new>a secret</something_new>
  </gpu>
</nvidia_smi_log>
"""
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tSYS\t48-95\t1
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_of_somebody
"""


def test_nothing_of_a_report_leaves_the_machine_but_what_is_listed() -> None:
    kept = machine.fixture(REPORT)
    for secret in ("1650123456789", "GPU-1111", "C1:00.0", "0xc100", "4711", "someone", "a secret", "2026"):
        assert secret not in kept
    gpu_of = ET.fromstring(kept).find("gpu")
    assert gpu_of is not None
    assert gpu_of.findtext("product_name") == "NVIDIA H100 80GB HBM3"
    assert gpu_of.findtext("mig_mode/current_mig") == "Disabled"
    assert gpu_of.findtext("clocks_event_reasons/clocks_event_reason_gpu_idle") == "Active"
    assert gpu_of.findtext("process_count") == "1"


def test_the_state_of_an_idle_h200_is_read_from_its_report() -> None:
    recorded = Path(__file__).parents[1] / "fixtures/gpu/nvidia-smi-h200.xml"
    assert machine.state(recorded.read_text()) == [
        {
            "sm_clock_mhz": 345.0,
            "memory_clock_mhz": 3201.0,
            "power_w": 78.91,
            "power_limit_w": 700.0,
            "temperature_c": 38.0,
            "lowered_by": ["gpu_idle"],
            "uncorrected_errors": 0,
            "processes": None,  # what is sent back has their number alone
        }
    ]
    assert machine.state(REPORT)[0]["processes"] == 1
    assert machine.state(REPORT)[0]["power_w"] is None


@pytest.mark.parametrize(
    ("answer", "exclusive"),
    [("echo Default", False), ("echo Default; echo Exclusive_Process", True), ("exit 15", False)],
)
def test_of_exclusive_gpus_one_process_at_a_time_is_known(
    answer: str, exclusive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a GPU that is lost, of which nvidia-smi says nothing."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.is_exclusive() is exclusive


def test_the_spread_of_a_row_is_that_of_all_processes(tmp_path: Path) -> None:
    for number, value in enumerate((100.0, 104.0, 110.0), start=1):
        rows = [{"part": "gpt", "name": "o1", "value": value}, {"part": "check", "name": "x", "value": None}]
        (tmp_path / f"gpu-{number}.json").write_text(json.dumps({"rows": rows}))
    assert spread(tmp_path) == [{"part": "gpt", "name": "o1", "values": [100.0, 104.0, 110.0], "spread": 1.1}]


def test_a_day_has_time_for_all_checks_of_kernels() -> None:
    estimates = sum(task.estimate for task in gpu.tasks() if task.part == "check")
    assert gpu.START_SECONDS + estimates <= 60 * CHECKS


def test_a_day_takes_ten_minutes() -> None:
    assert sum(part.seconds for part in parts()) <= 600


def test_the_container_is_of_the_newest_image_that_is_here() -> None:
    here = ["nvcr.io/nvidia/pytorch:24.10-py3", "nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io/nvidia/pytorch:<none>"]
    assert newest_ngc("\n".join([*here, "somebody/nvidia/pytorch:26.01-py3"])) == here[1]
    assert newest_ngc("debian:12\n") == ""


def test_a_trace_leaves_the_machine_without_its_name() -> None:
    text = json.dumps({"host_name": "somebodys", "traceName": "/home/someone/rank0.json", "traceEvents": [{"ph": "M"}]})
    assert json.loads(machine.trace(text)) == {"traceEvents": [{"ph": "M"}]}


def test_a_topology_is_of_gpus_alone() -> None:
    assert machine.topology(TOPOLOGY) == "GPU0\tX\tNV18\nGPU1\tNV18\tX\n"


def test_scripts_a_fused_optimizer_and_a_killed_rank_are_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Day.launcher

    def warm_launcher(day: Day, first: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        trains = first.startswith("recipe=") or first.endswith(".py")
        return launcher(day, first, *([f"python={warm.python()}"] if trains else []), *words, **environ)

    monkeypatch.setattr(Day, "launcher", warm_launcher)
    out = tmp_path / "day"
    assert gpu.main(["day", "--device", "cpu", "--tiny", "--out", str(out), "--only", "a", "c", "d", "g"]) == 0
    document = json.loads((out / "day.json").read_text())
    checks = [check for part in document["parts"] for check in part["checks"]]
    assert document["rehearsal"] and len(checks) == 7
    assert {check["passed"] for check in checks} == {True, None}
    assert all(part["ended"] for part in document["parts"])


@pytest.mark.parametrize(
    ("ends", "outcome"), [(LeftOut("no image"), [True]), (OSError("the GPU is gone"), [True, False])]
)
def test_a_part_that_breaks_fails_and_costs_no_other(ends: Exception, outcome: list[bool], tmp_path: Path) -> None:
    def breaks(day: Day):  # type: ignore[no-untyped-def]
        yield Check(name="first", passed=True)
        raise ends

    day = Day(device="cpu", tiny=True, thorough=False, folder=tmp_path, home=tmp_path)
    *_, (checks, _) = days.run(Part(letter="x", about="a part", seconds=1, run=breaks), day)
    assert [check.passed for check in checks] == outcome


def test_a_day_that_is_stopped_has_what_was_checked_and_says_how_to_do_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(day: Day):  # type: ignore[no-untyped-def]
        yield Check(name="first", passed=True)
        raise KeyboardInterrupt

    made = [Part(letter=letter, about="a part", seconds=1, run=stopped) for letter in "xy"]
    monkeypatch.setattr(days, "parts", lambda: made)
    assert days.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "day")]) == 130
    (part,) = json.loads((tmp_path / "day/day.json").read_text())["parts"]
    assert ([check["name"] for check in part["checks"]], part["ended"]) == (["first"], False)
    assert "--only x y does the rest" in capsys.readouterr().out


def test_why_a_command_failed_is_kept_without_the_names_of_folders_and_gpus(tmp_path: Path) -> None:
    day = Day(device="cpu", tiny=True, thorough=False, folder=tmp_path, home=tmp_path / "home")
    line = f"{Path.home()}/train.py: GPU-11111111-2222-3333-4444-555555555555 is gone ({day.home}/runs)"
    done = day.python("-c", f"import sys; print('a traceback', file=sys.stderr); sys.exit({line!r})")
    assert day.why(done) == {"why": "HOME/train.py: a GPU is gone (RUNS/runs)"}
    assert day.why(day.python("-c", "print('well')")) == {}
    noted = "import sys; print('why it failed'); sys.stderr.write('note: 16 layers converted\\n'); sys.exit(1)"
    assert day.why(day.python("-c", noted)) == {"why": "why it failed"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--device", "cpu"], "--device cpu needs --tiny"),
        (["--device", "cpu", "--tiny", "--only", "z"], "the parts are a (the machine)"),
        ([], "torch sees no CUDA GPU here"),
    ],
)
def test_what_it_cannot_do_is_refused(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(["day", *words, "--out", str(tmp_path / "day")])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "day").exists()
