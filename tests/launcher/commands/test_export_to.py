import sys

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


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    said = capsys.readouterr().out
    assert said.count("\n  python -m launcher export ") == 2 and "to=mlflow --follow" in said
