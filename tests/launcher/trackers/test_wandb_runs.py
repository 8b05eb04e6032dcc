import json
import struct
from pathlib import Path

import pytest

from launcher.runs import store

from ..run_folders import NAME, SWEEP, metrics
from . import exported
from .exported import BEGAN, record, row, run

pytest.importorskip("wandb")

HEADER, BLOCK, FIRST, WHOLE, LAST = 7, 1 << 15, 2, 1, 4
"""Of wandb's files, which are logs of LevelDB: parts of records in blocks, each after seven bytes with its length and
its kind."""


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where it looks for a key
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def export(*words):
    """The verb, and the end of wandb's own process, which writes the last records. The settings of a process are those
    of its first call."""
    import wandb

    try:
        return exported.export(*words)
    finally:
        wandb.teardown()


def folders() -> list[Path]:
    return sorted(Path("wandb").glob("offline-run-*"), key=lambda folder: folder.stat().st_mtime_ns)


def records(folder):
    """What is in the file of a run that would be synced."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    data, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        part = data[at + HEADER : (at := at + HEADER + length)]
        parts = part if kind in (WHOLE, FIRST) else parts + part
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)


def values(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def curve(folder, name="train/loss"):
    rows = [values(found.history.item) for found in records(folder) if found.HasField("history")]
    return [(row["step"], pytest.approx(row[name])) for row in rows if name in row]


def head(folder):
    return next(found.run for found in records(folder) if found.HasField("run"))


def test_its_files_have_scalars_config_tags_verdict_and_the_report(root, capsys):
    folder = run(root, steps=3)
    assert export("brave", "to=wandb") == 0
    (sent,) = folders()
    assert f"wandb sync {sent.absolute()}" in capsys.readouterr().out
    assert curve(sent) == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert curve(sent, "eval/accuracy") == [(3, 0.03)]
    assert curve(sent, "_timestamp")[0] == (1, BEGAN + 1)
    about = head(sent)
    assert (about.run_id, about.project, about.display_name) == (NAME, "amp-launcher", "brave-otter")
    assert list(about.tags) == ["o2", "mnist", "torch"]
    config = values(about.config.update)
    assert (config["amp.level"], config["batch"], config["launcher"]["recipe"]) == ("o2", 128, "mnist")
    updates = [values(found.summary.update) for found in records(sent) if found.HasField("summary")]
    assert next(update["verdict"] for update in updates if "verdict" in update) == "proved: 97% of the work in bfloat16"
    assert "brave-otter" in (sent / "files" / "report.html").read_text()
    of_this_machine = {"requirements.txt", "wandb-metadata.json", "diff.patch", "code"}
    assert not of_this_machine & {path.name for path in (sent / "files").iterdir()}
    assert record(folder)["mark"] == {"id": NAME}


def test_a_second_export_adds_nothing_and_a_later_one_continues_the_same_run(root, capsys):
    folder = run(root, steps=2)
    export("brave", "to=wandb")
    export("brave", "to=wandb")
    assert "nothing new to send" in capsys.readouterr().out
    assert len(folders()) == 1
    metrics(folder, [row(3)])
    export("brave", "to=wandb")
    first, second = folders()
    assert curve(second) == [(3, pytest.approx(1 / 3))]
    assert head(first).run_id == head(second).run_id


def test_files_of_an_export_that_was_killed_are_replaced(root):
    folder = run(root, steps=2)
    export("brave", "to=wandb")
    (written,) = folders()
    killed = written.rename(written.with_name(f"offline-run-20260101_000000-{NAME}"))
    other = Path("wandb", "offline-run-20260101_000000-another").absolute()
    other.mkdir()
    sent = store.read_or_empty(folder / "trackers.json")
    (place,) = sent["sent"]
    for named in (other, killed.absolute()):
        store.write_json(folder / "trackers.json", {"sent": {place: {"mark": {"id": NAME, "open": str(named)}}}})
        export("brave", "to=wandb")
    assert other.is_dir()
    assert not killed.exists()
    assert curve(folders()[-1]) == [(1, 1.0), (2, 0.5)]


def test_cells_of_a_sweep_are_one_group(root):
    names = [f"{SWEEP}-{index:03}" for index in range(2)]
    for name in names:
        run(root, name, steps=2)
    export("calm-lake", "to=wandb")
    assert sorted((head(folder).run_id, head(folder).run_group) for folder in folders()) == [
        (name, SWEEP) for name in names
    ]


def test_a_script_that_logs_to_wandb_itself_is_left_alone(root, capsys):
    run(root, plan={"script": {"file": "train.py"}, "env": {"WANDB_PROJECT": "digits"}})
    assert export("brave", "to=wandb") == 2
    assert "logs to wandb itself" in capsys.readouterr().err
    assert folders() == []


@pytest.mark.parametrize("key", [None, "short"])
def test_a_key_that_is_wrong_or_missing_is_one_sentence(root, monkeypatch, capsys, key):
    folder = run(root)
    monkeypatch.setenv("WANDB_MODE", "online")
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    assert export("brave", "to=wandb") == 2
    said = capsys.readouterr().err
    assert "set WANDB_API_KEY, say `wandb login`, or WANDB_MODE=offline" in said and "Traceback" not in said
    assert not (folder / "trackers.json").exists()


def test_a_service_that_is_down_is_told_and_the_rest_sent_later(root, monkeypatch, capsys):
    folder = run(root, steps=2)
    monkeypatch.setattr("launcher.trackers.wandb_runs.PATIENCE", 2)
    with monkeypatch.context() as down:
        down.setenv("WANDB_MODE", "online")
        down.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        down.setenv("WANDB_API_KEY", "a" * 40)
        assert export("brave", "to=wandb") == 3
    said = capsys.readouterr().err
    assert "wandb at http://127.0.0.1:9 does not answer" in said and "sends the rest" in said
    assert not (folder / "trackers.json").exists()
