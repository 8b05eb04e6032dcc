"""What of a machine goes into the folder of the day: by a list of what may, so that no serial, UUID, process, name or
path leaves it."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

KEPT = frozenset(
    """driver_version cuda_version attached_gpus product_name product_brand product_architecture display_active
    persistence_mode addressing_mode gpu_reset_status reset_required gpu_recovery_action mig_mode current_mig
    pending_mig compute_mode virtualization_mode host_vgpu_mode
    gpu_virtualization_mode vbios_version fb_memory_usage bar1_memory_usage total reserved used free utilization
    gpu_util memory_util ecc_mode current_ecc pending_ecc ecc_errors volatile aggregate sram_correctable
    sram_uncorrectable sram_uncorrectable_parity sram_uncorrectable_secded dram_correctable dram_uncorrectable
    retired_pages remapped_rows remapped_row_corr remapped_row_unc remapped_row_pending remapped_row_failure
    temperature gpu_temp gpu_power_readings power_state power_draw instant_power_draw average_power_draw
    current_power_limit default_power_limit max_power_limit clocks graphics_clock sm_clock mem_clock max_clocks
    applications_clocks clocks_event_reasons clocks_throttle_reasons performance_state mig_devices mig_device index
    gpu_instance_id compute_instance_id device_attributes shared multiprocessor_count pci pci_gpu_link_info pcie_gen
    link_widths max_link_gen current_link_gen max_link_width current_link_width""".split()
)
"""Elements of `nvidia-smi -q -x`. Beside them every `clocks_event_reason_*` and `clocks_throttle_reason_*`."""
REASON = re.compile(r"clocks_(event|throttle)_reason_\w+")
PROCESSES = "processes"
"""Its elements become their number."""


def fixture(text: str) -> str:
    """What may leave the machine of the XML of `nvidia-smi -q -x`, as XML that a parser's test can read.

    Raises `ET.ParseError` where it is no XML.
    """
    root = ET.fromstring(text)
    log = ET.Element("nvidia_smi_log")
    for child in root:
        if child.tag == "gpu":
            kept = _kept(child)
            kept.append(_number_of(child.find(PROCESSES)))
            log.append(kept)
        elif child.tag in KEPT:
            log.append(_kept(child))
    ET.indent(log)
    return ET.tostring(log, encoding="unicode") + "\n"


_VALUES = {
    "sm_clock_mhz": "clocks/sm_clock",
    "memory_clock_mhz": "clocks/mem_clock",
    "power_w": "gpu_power_readings/instant_power_draw",
    "power_limit_w": "gpu_power_readings/current_power_limit",
    "temperature_c": "temperature/gpu_temp",
}
_OLDER = {"power_w": "gpu_power_readings/power_draw"}
"""Of drivers that know no instant."""


def state(text: str) -> list[dict[str, Any]]:
    """Of each GPU of `nvidia-smi -q -x`: clocks, power and its limit, temperature, what lowers the clocks, memory
    errors that were not corrected since the last reset, and how many processes use it; None is what it doesn't say.

    Raises `ET.ParseError` where it is no XML.
    """
    return [_state(gpu) for gpu in ET.fromstring(text).iter("gpu")]


def _state(gpu: ET.Element) -> dict[str, Any]:
    values = {
        name: _number(gpu.findtext(path) or gpu.findtext(_OLDER.get(name, path))) for name, path in _VALUES.items()
    }
    errors = [_number(element.text) for element in gpu.findall("ecc_errors/volatile/*") if "uncorrect" in element.tag]
    processes = gpu.find(PROCESSES)
    return {
        **values,
        "lowered_by": [
            element.tag.partition("_reason_")[2]
            for element in gpu.iter()
            if REASON.fullmatch(element.tag) and (element.text or "").strip() == "Active"
        ],
        "uncorrected_errors": sum(filter(None, errors)) if errors else None,
        "processes": None if processes is None else len(processes),
    }


def _number(text: str | None) -> float | None:
    """Of `1980 MHz`, `78.91 W`, `0`; None of `N/A`."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def state_now() -> list[dict[str, Any]]:
    """Of this machine's GPUs; empty where `nvidia-smi` does not answer."""
    try:
        return state(asked("-q", "-x"))
    except (OSError, subprocess.SubprocessError, ET.ParseError):
        return []


def _kept(element: ET.Element) -> ET.Element:
    copy = ET.Element(element.tag)  # without attributes: a GPU's is its place on the bus
    children = [_kept(child) for child in element if child.tag in KEPT or REASON.fullmatch(child.tag)]
    copy.extend(children)
    if not len(element) and element.text:
        copy.text = element.text.strip()
    return copy


def _number_of(processes: ET.Element | None) -> ET.Element:
    count = ET.Element("process_count")
    count.text = str(0 if processes is None else len(processes))
    return count


def topology(text: str) -> str:
    """The matrix of `nvidia-smi topo -m`, of GPUs alone: rows of network cards and the legend have names."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    header = next((row for row in rows if any(cell.strip() == "GPU0" for cell in row)), [])
    columns = [number for number, cell in enumerate(header) if re.fullmatch(r"\s*GPU\d+\s*", cell)]
    lines = [
        [row[0].strip(), *(row[number].strip() for number in columns if number < len(row))]
        for row in rows
        if re.fullmatch(r"GPU\d+\s*", row[0])
    ]
    return "".join("\t".join(line) + "\n" for line in lines)


def is_exclusive() -> bool:
    """Whether a GPU takes one process at a time, by its compute mode."""
    try:
        return "Exclusive" in asked("--query-gpu=compute_mode", "--format=csv,noheader")
    except (OSError, subprocess.SubprocessError):
        return False


def asked(*arguments: str) -> str:
    """What nvidia-smi prints. Raises `OSError` where there is none, `subprocess.SubprocessError` where it fails, or a
    GPU that was lost keeps it from answering."""
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=20).stdout


def trace(text: str) -> str:
    """What may leave the machine of a trace of torch's profiler: not its host's name, nor where it was written.

    Raises `ValueError` where it is none.
    """
    document = json.loads(text)
    return json.dumps({key: value for key, value in document.items() if key not in ("host_name", "traceName")})


def torch_build() -> dict[str, Any]:
    """What this build of torch was made for, and what it sees."""
    import torch

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
        "gpus": [torch.cuda.get_device_name(number) for number in gpus],
        "capabilities": [list(torch.cuda.get_device_capability(number)) for number in gpus],
    }
