"""Telemetry: what is read, from text; what run.sh writes, under the real bash.

In place of `nvidia-smi`, which is not on this machine, stands a program of ours: a process boundary. What it prints is
laid out as NVIDIA's program prints it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time

import pytest

from launcher.executors import execute
from launcher.runs import processes
from launcher.runs.processes import Target
from launcher.script import telemetry
from tests.launcher import fake_gpus
from tests.launcher.run_folders import until
from tests.launcher.stand_in import lay

HEADER = (
    "timestamp, index, uuid, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%], "
    "power.draw [W], clocks.current.sm [MHz], clocks.current.memory [MHz], temperature.gpu"
)
ROWS = (
    "2026/11/21 00:00:10.250, 0, GPU-a, 3000, 81559, 93, 40, 412.73, 1980, 2619, 61",
    "2026/11/21 00:00:10.251, 1, GPU-b, 4, 81559, 0, 0, 70.02, 345, 2619, 33",
    "2026/11/21 00:00:20.250, 0, GPU-a, 71234, 81559, 99, 61, 655.10, 1755, 2619, 70",
    "2026/11/21 00:00:20.251, 1, GPU-b, [N/A], 81559, [Not Supported], 0, [Unknown Error], 345, 2619, 33",
)


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Two GPUs, which nobody is on."""
    made = fake_gpus.make(tmp_path / "driver", 2)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    yield made
    made.close()


def lay_on(cards, tmp_path, program, **changes):
    """A prepared run on the second of the GPUs."""
    return lay(tmp_path, program, gpus=1, gpu_pool=cards.uuids[1:], **changes)[1]


def started(folder):
    return subprocess.Popen(["bash", str(folder / "run.sh")], env=execute.environment(), start_new_session=True)


def session(shell):
    """What lives of the session that the run's shell began."""
    listed = subprocess.run(["ps", "-o", "pid=", "-o", "state=", "-s", str(shell.pid)], capture_output=True, text=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return {int(pid) for pid, state in rows if state != "Z"}  # a container's init may reap nothing


def samplers(shell):
    """Those of them that write telemetry."""
    return {pid for pid in session(shell) if any(telemetry.FOLDER in name for name in open_files(pid))}


def open_files(pid):
    names = []
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                names.append(os.readlink(descriptor.path))
    return names


def test_each_gpu_is_a_series_in_its_units():
    (first, second), notes = telemetry.parse_gpus([HEADER, *ROWS])
    assert notes == []
    assert (first.device, first.uuid, second.device) == ("gpu 0", "GPU-a", "gpu 1")
    assert first.times == (1795219210.25, 1795219220.25)
    assert list(first.values) == list(telemetry.GPU_UNITS)
    assert [values[0] for values in first.values.values()] == [3000, 81559, 93, 40, 412.73, 1980, 2619, 61]


def test_columns_are_found_by_their_names_and_what_the_driver_does_not_know_is_none():
    (_, second), _ = telemetry.parse_gpus([HEADER, *ROWS])
    assert [second.values[name][1] for name in ("memory", "utilization", "power")] == [None, None, None]
    assert second.known("power") == [70.02]
    lines = ["timestamp, uuid, index, power.draw [W]", "2026/11/21 00:00:10.250, GPU-a, 3, 99.50"]
    (gpu,), _ = telemetry.parse_gpus(lines)
    assert (gpu.device, gpu.values["power"], gpu.values["memory"]) == ("gpu 3", (99.5,), (None,))


def test_the_share_of_busy_cores_is_that_since_the_sample_before():
    lines = ["time [s], ...", "100, 50, 1000, 1024, 4096", "110, 150, 1400, 2048, 4096", "120, 150, 1400, 0, 4096"]
    (host,) = telemetry.parse_host(lines)
    assert host.values["cpu"] == (None, 25.0, None)
    assert host.values["memory"] == (3.0, 2.0, 4.0)
    assert host.values.keys() == telemetry.HOST_UNITS.keys()


def test_a_half_written_line_is_left_out(tmp_path):
    assert telemetry.read(tmp_path) == telemetry.Telemetry()
    folder = tmp_path / telemetry.FOLDER
    folder.mkdir()
    (folder / "2-1.gpu.csv").write_text("\n".join([HEADER, *ROWS, ROWS[0][:40]]))
    (folder / "2-1.host.csv").write_text("time [s]\n1, 2, 3, 4, 5\n1, 2")
    seen = telemetry.read(tmp_path)
    assert [(series.attempt, series.node, len(series.times)) for series in seen.gpus] == [(2, 1, 2), (2, 1, 2)]
    assert [(series.attempt, series.node, len(series.times)) for series in seen.hosts] == [(2, 1, 1)]
    assert seen.notes == ()


@pytest.mark.parametrize("index", ["²", "9" * 5000])
@pytest.mark.parametrize("time", ["2026/13/21 00:00:10", "0000/01/01 00:00:10"])
def test_numbers_and_times_that_are_none_are_no_samples(index, time):
    """Of a file that was damaged, or that another host made."""
    assert telemetry.parse_host([f"{index}, 1, 2, 3, 4", f"1, 2, 3, 4, {index}"]) == []
    lines = [ROWS[0].replace(" 0,", f" {index},"), ROWS[0].replace("2026/11/21 00:00:10", time)]
    assert telemetry.parse_gpus([HEADER, *lines]) == ([], lines)
    (gpu,), _ = telemetry.parse_gpus([HEADER, ROWS[0].replace("412.73", "nan").replace(" 93,", " inf,")])
    assert gpu.known("power") == gpu.known("utilization") == []


@pytest.mark.parametrize(
    ("lines", "seconds", "notes"),
    [
        ([HEADER, *ROWS], 30, ()),
        ([HEADER, *ROWS], 200, ("nvidia-smi's samples end 190 s before the host's do (attempt 1, node 0)",)),
        ([HEADER, ROWS[0], "Unable to determine the device handle"], 10, ("Unable to determine the device handle",)),
        (["NVIDIA-SMI has failed"], 30, ("NVIDIA-SMI has failed", "nvidia-smi gave no sample (attempt 1, node 0)")),
    ],
)
def test_other_words_of_nvidia_smi_and_samples_that_end_early_are_notes(tmp_path, lines, seconds, notes):
    """The host was sampled every 10 s, from the first sample of the GPUs on."""
    (tmp_path / telemetry.FOLDER).mkdir()
    (tmp_path / telemetry.FOLDER / "1-0.gpu.csv").write_text("".join(f"{line}\n" for line in lines))
    samples = [f"{1795219210 + second}, 1, {second}, 4, 5\n" for second in range(0, seconds + 1, 10)]
    (tmp_path / telemetry.FOLDER / "1-0.host.csv").write_text("time [s]\n" + "".join(samples))
    assert telemetry.read(tmp_path).notes == notes


def test_a_run_is_sampled_while_it_runs(tmp_path, program, cards):
    folder = lay_on(cards, tmp_path, program, env={"BEHAVIOUR": "time.sleep(1.3)"}, telemetry=1)
    began = time.time()
    shell = started(folder)
    assert shell.wait() == 0
    until(lambda: not session(shell))  # nvidia-smi was told to end, and isn't waited for
    seen = telemetry.read(folder)
    (gpu,), (host,) = seen.gpus, seen.hosts
    assert (gpu.device, gpu.attempt, gpu.node) == ("gpu 1", 1, 0)
    assert len(gpu.times) >= 2
    assert int(began) <= gpu.times[0] <= time.time()
    assert [values[0] for values in gpu.values.values()] == [4, 32768, 93, None, 212.08, 1530, 877, 61]
    assert len(host.times) >= 3  # one at once, one while it ran, one at the end
    assert any(share is not None and 0 < share <= 100 for share in host.values["cpu"])
    assert all(0 < used < total for used, total in zip(host.known("memory"), host.known("memory_total"), strict=True))


def test_an_nvidia_smi_that_crashes_harms_neither_the_run_nor_the_other_samples(tmp_path, program, cards):
    smi, crash = cards.folder / "nvidia-smi", "import os; os.kill(os.getpid(), 11)"
    smi.write_text(smi.read_text().replace('time.sleep(float(options["--loop"]))', crash))
    folder = lay_on(cards, tmp_path, program, env={"BEHAVIOUR": "time.sleep(1.3)"}, telemetry=1)
    assert started(folder).wait() == 0
    seen = telemetry.read(folder)
    assert [len(series.times) for series in seen.gpus] == [1]
    assert len(seen.hosts[0].times) >= 3


def test_an_nvidia_smi_that_never_answers_is_noted_and_outlives_no_run(tmp_path, program, cards):
    smi = cards.folder / "nvidia-smi"
    hangs = 'if "--loop" in options:\n    time.sleep(600)\n'
    smi.write_text(smi.read_text().replace('if "--query-gpu" in', hangs + 'if "--query-gpu" in'))
    folder = lay_on(cards, tmp_path, program, env={"BEHAVIOUR": "time.sleep(2.3)"}, telemetry=1)
    shell = started(folder)
    assert shell.wait() == 0
    until(lambda: not session(shell))
    seen = telemetry.read(folder)
    assert (seen.gpus, seen.notes) == ((), ("nvidia-smi gave no sample (attempt 1, node 0)",))
    assert len(seen.hosts[0].times) >= 3


@pytest.mark.parametrize("driver", [True, False], ids=["a job without GPUs", "a host without the driver"])
def test_without_gpus_or_their_driver_the_host_alone_is_sampled(tmp_path, program, driver, request):
    if driver:
        request.getfixturevalue("cards")
    _, folder = lay(tmp_path, program, telemetry=1, gpus=0 if driver else 1)
    assert started(folder).wait() == 0
    assert sorted(os.listdir(folder / telemetry.FOLDER)) == ["1-0.host.csv", "1-0.node"]
    assert telemetry.node_of(folder, 1, 0) == platform.node()


def test_nothing_is_recorded_where_it_is_switched_off(tmp_path, program):
    _, folder = lay(tmp_path, program, "telemetry.every=0")
    assert "telemetry" not in (folder / "run.sh").read_text()
    assert started(folder).wait() == 0
    assert not (folder / telemetry.FOLDER).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_sampling_ends_with_the_run_however_that_ends(tmp_path, program, cards, number):
    folder = lay_on(cards, tmp_path, program, env={"BEHAVIOUR": "time.sleep(60)"}, telemetry=60)
    shell = started(folder)
    until(lambda: (tmp_path / "dump").exists() and len(samplers(shell)) == 2)
    os.kill(shell.pid, number)
    until(lambda: not samplers(shell))
    processes.end([Target(processes.identity(shell.pid), folder.name)], 0)
    shell.wait()


def test_sampling_holds_no_lock_and_no_log_of_the_run(tmp_path, program, cards):
    folder = lay_on(cards, tmp_path, program, env={"BEHAVIOUR": "time.sleep(30)"}, telemetry=60)
    shell = started(folder)
    until(lambda: (tmp_path / "dump").exists() and len(samplers(shell)) == 2)
    holding = {pid for pid in session(shell) if any(fake_gpus.LOCK in name for name in open_files(pid))}
    writing = {pid for pid in session(shell) if any(name.endswith(".log") for name in open_files(pid))}
    assert holding and writing
    assert not samplers(shell) & (holding | writing)
    processes.end([Target(processes.identity(shell.pid), folder.name)], 0)
    shell.wait()
