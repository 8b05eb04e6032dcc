"""Who is on a GPU, and what is wrong with it, from what `nvidia-smi -q -x` reports.

The reports are constructed: an excerpt of a real one's elements, in their order, with the values that differ as people
posted them: GH200 (driver 545, addressing mode ATS), processes under MPS (nvidia-cuda-mps-server with 30 MiB, a client
of type M+C), an A800 with 32 uncorrectable errors and a pending row remap. One was recorded: an idle H200, as the day
on a GPU (`benchmarks.day.machine`) keeps it, without what names the machine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launcher.probe import gpu_locks, gpu_probing
from launcher.probe.facts import Gpu

REPORT = """\
	<gpu id="00000000:{bus}:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<display_active>Disabled</display_active>
		<addressing_mode>HMM</addressing_mode>
		<mig_mode>
			<current_mig>Disabled</current_mig>
		</mig_mode>
		<mig_devices>
			None
		</mig_devices>
		<uuid>GPU-{bus}</uuid>
		<gpu_virtualization_mode>
			<virtualization_mode>None</virtualization_mode>
			<host_vgpu_mode>N/A</host_vgpu_mode>
		</gpu_virtualization_mode>
		<gpu_reset_status>
			<reset_required>No</reset_required>
		</gpu_reset_status>
		<gpu_recovery_action>None</gpu_recovery_action>
		<fb_memory_usage>
			<total>81559 MiB</total>
			<reserved>551 MiB</reserved>
			<used>1 MiB</used>
			<free>81008 MiB</free>
		</fb_memory_usage>
		<bar1_memory_usage>
			<used>2000 MiB</used>
		</bar1_memory_usage>
		<compute_mode>Default</compute_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>7</sram_correctable>
				<dram_uncorrectable>0</dram_uncorrectable>
			</volatile>
			<aggregate>
				<dram_uncorrectable>71</dram_uncorrectable>
			</aggregate>
		</ecc_errors>
		<retired_pages>
			<double_bit_retirement>
				<retired_count>N/A</retired_count>
			</double_bit_retirement>
			<pending_retirement>N/A</pending_retirement>
		</retired_pages>
		<remapped_rows>
			<remapped_row_pending>No</remapped_row_pending>
			<remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<processes>
		</processes>
	</gpu>
"""
USED, ERRORS = "<used>1 MiB</used>", "<dram_uncorrectable>0</dram_uncorrectable>"
MUCH = (USED, "<used>9342 MiB</used>")
VOLTA = "<double_bit>\n<device_memory>2</device_memory>\n<total>2</total>\n</double_bit>"
INSTANCE = (
    "<mig_device>\n<uuid>MIG-1</uuid>\n<fb_memory_usage>\n<used>9000 MiB</used>\n</fb_memory_usage>\n</mig_device>"
)


def process(name: str, kind: str) -> tuple[str, str]:
    row = f"<pid>1</pid>\n<type>{kind}</type>\n<process_name>{name}</process_name>\n<used_memory>30 MiB</used_memory>"
    return "<processes>", f"<processes>\n<process_info>\n{row}\n</process_info>"


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/bash\n{program}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def seen(folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> Gpu:
    report = REPORT.format(bus="01")
    for old, new in changes:
        assert report.count(old) == 1
        report = report.replace(old, new)
    (folder / "report.xml").write_text(f"<nvidia_smi_log>\n{report}</nvidia_smi_log>\n")
    answering(folder, monkeypatch, f"cat {folder}/report.xml")
    (gpu,) = gpu_locks.states()
    assert (gpu.index, gpu.uuid) == (0, "GPU-01")
    return gpu


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), id="idle"),
        pytest.param((process("nvidia-cuda-mps-server", "C"),), id="a waiting MPS server"),
        pytest.param((process("/usr/lib/xorg/Xorg", "G"),), id="a display server"),
        pytest.param((MUCH, ("<addressing_mode>HMM<", "<addressing_mode>ATS<")), id="page cache of a GH200 or GB200"),
        pytest.param((MUCH, ("<virtualization_mode>None<", "<virtualization_mode>VGPU<")), id="vGPU of a guest"),
        pytest.param((("\t\t\tNone", INSTANCE),), id="an instance of MIG has memory of its own"),
    ],
)
def test_a_gpu_is_free_where_nobody_uses_it(tmp_path, monkeypatch, changes) -> None:
    gpu = seen(tmp_path, monkeypatch, *changes)
    assert (gpu.holder, gpu.fault) == ("", "")


def test_an_idle_h200_is_free_and_has_no_fault(tmp_path, monkeypatch) -> None:
    recorded = (Path(__file__).parents[2] / "fixtures/gpu/nvidia-smi-h200.xml").read_text()
    (tmp_path / "report.xml").write_text(recorded.replace("<gpu>", '<gpu id="00000000:01:00.0">\n<uuid>GPU-01</uuid>'))
    answering(tmp_path, monkeypatch, f"cat {tmp_path}/report.xml")
    (gpu,) = gpu_locks.states()
    assert (gpu.uuid, gpu.holder, gpu.fault) == ("GPU-01", "", "")


@pytest.mark.parametrize(
    ("changes", "holder"),
    [
        ((process("/usr/bin/dcgmproftester12", "M+C"),), "process 1 (dcgmproftester12) of root"),
        ((process("/opt/python", "C+G"),), "process 1 (python) of root"),
        ((MUCH,), "9342 MiB in use by processes that are not seen from here"),
        ((MUCH, process("nvidia-cuda-mps-server", "C")), "9342 MiB in use"),
        (((USED, "<used>GPU requires reset</used>"),), "needs a reset"),
        ((("<reset_required>No<", "<reset_required>Yes<"),), "needs a reset"),
        ((("_action>None<", "_action>Reboot<"),), "needs a reboot"),
        ((("<compute_mode>Default<", "<compute_mode>Prohibited<"),), "its compute mode is Prohibited"),
    ],
)
def test_a_gpu_that_is_in_use_or_can_not_be_used_is_not_free(tmp_path, monkeypatch, changes, holder) -> None:
    assert seen(tmp_path, monkeypatch, *changes).holder.startswith(holder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            ((ERRORS, ERRORS.replace("0", "32")), ("_pending>No<", "_pending>Yes<")),
            "a memory repair waits for a reset, 32 uncorrectable memory errors since its last reset",
        ),
        (((ERRORS, VOLTA),), "2 uncorrectable memory errors since its last reset"),
        ((("<pending_retirement>N/A<", "<pending_retirement>Yes<"),), "a memory repair waits for a reset"),
        ((("_failure>No<", "_failure>Yes<"),), "a memory repair failed"),
        ((("_action>None<", "_action>Drain and Reset<"),), "the driver asks for: drain and reset"),
    ],
)
def test_a_gpu_with_a_fault_is_free_and_the_fault_is_named(tmp_path, monkeypatch, changes, fault) -> None:
    gpu = seen(tmp_path, monkeypatch, *changes)
    assert (gpu.holder, gpu.fault) == ("", fault)


def test_memory_without_a_process_is_windows_own_under_wsl(tmp_path, monkeypatch) -> None:
    assert seen(tmp_path, monkeypatch, MUCH).holder.startswith("9342 MiB in use")
    functions = gpu_locks.functions().replace("/dev/dxg", str(tmp_path))  # WSL's device, which no other system has
    monkeypatch.setattr(gpu_locks, "functions", lambda: functions)
    assert seen(tmp_path, monkeypatch, MUCH).holder == ""


LOST = """
case "$*" in
  *--id=0000:02:00.0*) ;;
  *--query-gpu*--id=0000:0[13]*)
    n=${3#--id=0000:0} n=${n%%:*}
    echo "$((n-1)), GPU-0$n, Tesla T4, 15360, 550.1, 7.5, [N/A]"; exit ;;
  *--id=*) n=${3#--id=0000:}; sed "s/{bus}/${n%%:*}/" FOLDER/report.xml; exit ;;
esac
echo 'Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU'
exit 15
"""


def test_a_lost_gpu_is_named_and_leaves_the_others(tmp_path, monkeypatch) -> None:
    buses = [f"0000:0{number}:00.0" for number in (1, 2, 3)]
    (tmp_path / "report.xml").write_text(REPORT)
    answering(tmp_path, monkeypatch, LOST.replace("FOLDER", str(tmp_path)))
    found, problem = gpu_probing.listed()
    assert (found, problem[:64]) == ((), "nvidia-smi failed: Unable to determine the device handle for GPU")
    for bus in buses:
        (tmp_path / "buses" / bus).mkdir(parents=True)
    monkeypatch.setattr(gpu_probing, "BUSES", str(tmp_path / "buses"))
    functions = gpu_locks.functions().replace("/proc/driver/nvidia/gpus", str(tmp_path / "buses"))
    monkeypatch.setattr(gpu_locks, "functions", lambda: functions)
    gpus, problem = gpu_probing.listed()
    gpus = gpu_probing.with_holders(gpus)
    assert ([gpu.uuid for gpu in gpus], problem) == (["GPU-01", buses[1], "GPU-03"], "")
    assert [bool(gpu.holder) for gpu in gpus] == [False, True, False]
    assert gpus[1].holder.startswith("does not answer (Unable to determine the device handle for GPU0000:02:00.0")
    take = f"set -u\n{functions}\ngpu_take 2 'GPU-01 {buses[1]} GPU-03' run && echo $LAUNCHER_GPUS"
    assert subprocess.run(["bash", "-c", take], capture_output=True, text=True).stdout == "0,2\n"
    for lock in Path(gpu_folder()).parent.glob("launcher-gpu-GPU-0[13]"):
        lock.unlink()


def gpu_folder() -> str:
    done = subprocess.run(["bash", "-c", f"{gpu_locks.functions()}\ngpu_folder"], capture_output=True, text=True)
    return done.stdout.strip()
