import signal
import subprocess
import sys
import types

import pytest

from launcher.runs import store

from .. import run_folders
from ..run_folders import NAME, SWEEP, metrics
from .exported import export, record, row, run

pytest.importorskip("tensorboard")


@pytest.fixture
def events(tmp_path, monkeypatch):
    """What TensorBoard reads of a run in `dir`."""
    # Its reader works without TensorFlow, which takes seconds to import.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(name=NAME):
        accumulator = EventAccumulator(str(tmp_path / "events" / name), size_guidance={"tensors": 0, "scalars": 0})
        return accumulator.Reload()

    return read


@pytest.fixture
def send(tmp_path):
    return lambda *words: export(*words, "to=tensorboard", f"dir={tmp_path / 'events'}")


def curve(events, name):
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]


def text(events, name):
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors(name)]


def test_tensorboard_reads_scalars_settings_tags_and_verdict(root, send, events, capsys):
    folder = run(root, steps=4, plan={"swept": [["amp", "o2"], ["sweep.seed", 3]]})
    (folder / "telemetry").mkdir()
    began = 1767323045
    lines = (f"{began + second}, {second}, {2 * second}, 1024, 4096" for second in (0, 2, 3))
    (folder / "telemetry" / "1-0.host.csv").write_text("head\n" + "\n".join(lines) + "\n")
    gpu = "timestamp, index, uuid, memory.used [MiB], utilization.gpu [%]\n2026/01/02 03:04:08.500, 1, GPU-1, 512, 87\n"
    (folder / "telemetry" / "1-0.gpu.csv").write_text(gpu)
    assert send("brave") == 0
    assert f"tensorboard --logdir {folder.parent.parent}/events" in capsys.readouterr().out
    read = events()
    assert curve(read, "train/loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert curve(read, "train/loss_scale") == [(step, 1024.0) for step in (1, 2, 3, 4)]
    assert curve(read, "eval/accuracy") == [(4, 0.04)]
    assert curve(read, "system/node0/host_cpu_percent") == [(2, 50.0), (3, 50.0)]
    assert curve(read, "system/node0/gpu1_utilization_percent") == [(3, 87.0)]
    assert curve(read, "system/node0/gpu1_memory_MiB") == [(3, 512.0)]
    assert curve(read, "final/throughput") == [(4, 3410.5)]
    assert read.Scalars("train/loss")[0].wall_time == began + 1
    from tensorboard.plugins.hparams import plugin_data_pb2

    plugin = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(plugin).session_start_info.hparams
    assert {name: value.string_value or value.number_value for name, value in hparams.items()} == {
        **{"amp.level": "o2", "amp.dtype": "auto", "amp.allow": "[]"},
        **{"batch": 128, "train.lr": 0.5, "sweep.seed": 3},
    }
    assert "| recipe | mnist |" in text(read, "tags")[0]
    assert text(read, "verdict") == ["done; proved: 97% of the work in bfloat16"]
    assert read.Tensors("verdict")[0].wall_time == began + 65


def test_a_second_export_adds_nothing_and_more_steps_are_added(root, tmp_path, send, events, capsys):
    folder = run(root, steps=2)
    assert send("brave") == 0
    (file,) = (tmp_path / "events" / NAME).iterdir()
    before = file.read_bytes()
    assert send("brave") == 0
    assert "nothing new to send" in capsys.readouterr().out
    assert file.read_bytes() == before
    metrics(folder, [row(3)])
    assert send("brave") == 0
    assert [step for step, _ in curve(events(), "train/loss")] == [1, 2, 3]
    assert file.read_bytes().startswith(before)


def test_what_was_written_before_a_kill_and_not_recorded_is_written_once(root, tmp_path, send, events):
    folder = run(root, steps=2)
    send("brave")
    (file,) = (tmp_path / "events" / NAME).iterdir()
    recorded = store.read_or_empty(folder / "trackers.json")
    metrics(folder, [row(3), row(4)])
    send("brave")
    file.write_bytes(file.read_bytes()[:-5])  # halfway in a record
    store.write_json(folder / "trackers.json", recorded)
    send("brave")
    assert [step for step, _ in curve(events(), "train/loss")] == [1, 2, 3, 4]


def test_an_export_that_is_killed_is_continued(root, tmp_path, send, events):
    folder = run(root, steps=1)
    metrics(folder, [row(step) for step in range(2, 20_001)])
    words = ["export", "brave", "to=tensorboard", f"dir={tmp_path / 'events'}", f"run_root={root}"]
    exporting = subprocess.Popen(run_folders.command(*words))
    run_folders.until(lambda: (folder / "trackers.json").exists() and record(folder)["steps"], every=0.001)
    exporting.kill()
    exporting.wait()
    assert record(folder)["closing"] is None, "it had ended already"
    send("brave")
    assert [step for step, _ in curve(events(), "train/loss")] == list(range(1, 20_001))


def test_steps_that_a_resume_takes_again_are_not_sent_again(root, send, events):
    folder = run(root, steps=6)
    send("brave")
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:4]
    (folder / "metrics.jsonl").write_text("".join(kept))
    metrics(folder, [row(step, loss=9.0) for step in (5, 6, 7)])
    send("brave")
    assert curve(events(), "train/loss")[4:] == [(5, 0.2), (6, 1 / 6), (7, 9.0)]


def test_a_loss_that_becomes_known_later_is_sent_for_its_step(root, send, events):
    folder = run(root, steps=2)
    (folder / "metrics.jsonl").write_text("")
    metrics(folder, [row(1, loss=None), row(2, loss=None)])
    send("brave")
    (folder / "metrics.jsonl").write_text("")
    metrics(folder, [row(1), row(2, logged={"grad/norm": 3.0, "bad": "text"})])
    send("brave")
    assert curve(events(), "train/loss") == [(1, 1.0), (2, 0.5)]
    assert curve(events(), "grad/norm") == [(2, 3.0)]


def test_a_run_whose_events_were_deleted_is_written_anew(root, tmp_path, send, events):
    run(root, steps=2)
    send("brave")
    (file,) = (tmp_path / "events" / NAME).iterdir()
    file.unlink()
    send("brave")
    assert [step for step, _ in curve(events(), "train/loss")] == [1, 2]


def test_a_damaged_or_hostile_record_leads_nowhere_else(root, tmp_path, send, events):
    folder = run(root, steps=2)
    send("brave")
    (tmp_path / "precious").write_text("mine")
    sent = store.read_or_empty(folder / "trackers.json")
    (place,) = sent["sent"]
    file = record(folder)["mark"]["file"]
    marks = ({"file": "../precious", "bytes": 0}, {"file": None}, [], {"file": file, "bytes": -1}, {"file": file})
    for mark in marks:
        store.write_json(folder / "trackers.json", {"sent": {place: {"steps": {"train/loss": "x"}, "mark": mark}}})
        assert send("brave") == 0
        assert [step for step, _ in curve(events(), "train/loss")] == [1, 2]
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_sweep_and_a_comparison_are_folders_of_their_runs(root, tmp_path, send, events):
    for index in range(2):
        run(root, f"{SWEEP}-{index:03}", steps=2, plan={"swept": [["amp", "o2"], ["data.dir", f"/a/{index}"]]})
    send("calm-lake")
    assert [step for step, _ in curve(events(f"{SWEEP}/001_amp=o2_data.dir=_a_1"), "train/loss")] == [1, 2]
    (written,) = (tmp_path / "events" / SWEEP / "001_amp=o2_data.dir=_a_1").iterdir()
    assert written.name.endswith(f".{SWEEP}-001")
    arms = [{"arm": "00", "swept": [["amp", "o0"]]}, {"arm": "01", "swept": [["amp", "o1"]]}]
    folder = run(root, plan={"arms": arms, "comparison": {"rounds": 1}})
    for arm in ("00", "01"):
        (folder / "arms" / arm).mkdir(parents=True)
        metrics(folder / "arms" / arm, [row(1), row(2)])
    send("brave")
    send("brave")
    assert [step for step, _ in curve(events(f"{NAME}/01_amp=o1"), "train/loss")] == [1, 2]
    (written,) = (tmp_path / "events" / NAME / "01_amp=o1").iterdir()
    assert written.name.endswith(f".{NAME}-01")


def test_a_running_run_is_followed_to_its_end(root, tmp_path, send, events, monkeypatch):
    monkeypatch.setattr("launcher.commands.export_to.INTERVAL", 0.2)
    monkeypatch.setenv("STEPS", "40")
    folder = run_folders.running(root, run_folders.STEPPING)
    assert send("brave", "--follow") == 0
    assert run_folders.state(folder).finished
    assert [step for step, _ in curve(events(), "train/loss")] == list(range(1, 41))
    assert text(events(), "verdict") == ["done; no verdict"]


def test_ctrl_c_leaves_the_run_alone_and_what_was_sent_is_recorded(root, tmp_path, send, events):
    folder = run_folders.running(root, run_folders.STEPPING)
    words = ["export", "brave", "to=tensorboard", f"dir={tmp_path / 'events'}", f"run_root={root}", "--follow"]
    following = subprocess.Popen(run_folders.command(*words), stderr=subprocess.PIPE, text=True)
    run_folders.until(lambda: (folder / "trackers.json").exists() and record(folder)["steps"])
    following.send_signal(signal.SIGINT)
    assert following.communicate()[1] == "interrupted\n"
    assert following.returncode == 130
    assert run_folders.state(folder).name == "running"
    assert send("brave") == 0
    steps = [step for step, _ in curve(events(), "train/loss")]
    assert steps == list(range(1, len(steps) + 1))


def test_two_exports_of_a_run_at_once_are_refused(root, send, capsys):
    from launcher.runs.run_roots import alone_with

    folder = run(root)
    with alone_with(folder, ".export", "exported"):
        assert send("brave") == 2
    assert "is being exported by another launcher this moment" in capsys.readouterr().err
    assert send("brave") == 0


def test_a_folder_that_can_not_be_written_is_refused(root, tmp_path, capsys):
    folder = run(root)
    (tmp_path / "file").touch()
    assert export("brave", "to=tensorboard", f"dir={tmp_path / 'file'}") == 2
    assert "Not a directory" in capsys.readouterr().err
    assert not (folder / "trackers.json").exists()


def test_no_framework_is_imported(root, tmp_path):
    run(root)
    words = ["export", "brave", "to=tensorboard", f"dir={tmp_path / 'events'}", f"run_root={root}"]
    program = (
        f"import sys; from launcher.__main__ import main; assert main({words!r}) == 0; "
        "print({'tensorflow', 'torch', 'mlflow', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_the_record_names_each_scalar_with_its_last_step(root, send):
    folder = run(root, steps=3)
    send("brave")
    assert record(folder)["steps"]["train/loss"] == record(folder)["steps"]["eval/accuracy"] == 3
