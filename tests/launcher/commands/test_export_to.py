import sys
import types

import pytest

from launcher.__main__ import main

from ..run_folders import NAME, finished


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["to=tensorbord"], "to=tensorbord is not one of tensorboard, mlflow, wandb; did you mean tensorboard?"),
        (["to="], "to= is not one of tensorboard, mlflow, wandb"),
        (["brave", "to=mlflow", "dir=x"], "dir= is for to=tensorboard"),
        (["to=tensorboard"], "export takes a run or sweep"),
        (["brave", NAME, "to=tensorboard"], "export: one run or sweep at a time"),
        (["brave", "to=tensorboard", "dirr=x"], "dirr=x; did you mean dir? (known here: to, dir, run_root)"),
        (["nobody", "to=tensorboard"], "nobody"),
        (["brave", "--follow"], "--follow goes with to=tensorboard, to=mlflow or to=wandb"),
        (["brave", "step=3", "to=tensorboard"], "unknown key step in step=3"),
    ],
)
def test_a_wrong_request_is_refused_with_the_choices(root, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    folder = finished(root)
    assert main(["export", *words]) == 2
    said = capsys.readouterr().err
    assert message in said, said
    assert not (folder / "trackers.json").exists() and not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_named_with_the_line_to_install_it(root, monkeypatch, capsys, tracker):
    finished(root)
    for name in [tracker, *(name for name in sys.modules if name.startswith(f"{tracker}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", "brave", f"to={tracker}"]) == 2
    assert f"pip install 'amp-launcher[{tracker}]'" in capsys.readouterr().err


def test_a_run_on_another_host_is_followed_from_here(over_ssh, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["recipe=simplenet", "train.width=32", "amp=o1", "batch=16", "steps=4", "device=cpu"]
    assert main([*words, *over_ssh]) == 0
    name = capsys.readouterr().out.split()[0]
    assert main(["export", name, "to=tensorboard", f"dir={tmp_path}", "--follow"]) == 0
    events = EventAccumulator(str(tmp_path / name)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    capsys.readouterr()
    assert main(["export", name, "to=tensorboard", f"dir={tmp_path}"]) == 0
    assert "nothing new to send" in capsys.readouterr().out
