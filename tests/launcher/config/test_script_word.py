"""The first word of a command line that is a file: the user's own script, and its framework."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from amp_launcher.recipe import find
from amp_launcher.typed import fields_of
from launcher.__main__ import main
from launcher.commands.completion import candidates
from launcher.config import request
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from tests.launcher.config.conftest import Refusal

TORCH = "import torch\n"
TENSORFLOW = "import tensorflow as tf\n"

pytestmark = pytest.mark.usefixtures("project")


def spec_of(*words: str) -> JobSpec:
    (spec,) = request.to_specs(request.compose(request.split_flags(words, starts=True)))
    return spec


@pytest.mark.parametrize(
    "words",
    [
        "train.py amp=o1 -- --lr 0.1",
        "--config-dir . -m train.py amp=o1 -- --lr 0.1",
        "train.py recipe=script script=train.py amp=o1 -- --lr 0.1",
    ],
)
def test_a_script_word_sets_recipe_and_script(words: str) -> None:
    expected, spec = spec_of(*"recipe=script script=train.py amp=o1 -- --lr 0.1".split()), spec_of(*words.split())
    assert (spec.training, spec.launch) == (expected.training, expected.launch)


@pytest.mark.parametrize(
    "word", ["./train.py", "../project/train.py", "image:/opt/train.py", "trainer", "no/such", "new.py"]
)
def test_paths_and_files_of_any_name_are_scripts(word: str, project: Path) -> None:
    (project / "trainer").write_text(TORCH)
    asked = request.split_flags([word, "amp=o1"], starts=True)
    assert asked.overrides == ("recipe=script", f"script={word}", "amp=o1")


REFUSED = {
    "trian.py": "script=trian.py: there is no such file; did you mean train.py?",
    "missing.py": "has broken.py, train.py",
    "sub/": "script=sub/ is a folder",
    "run.sh": "script=run.sh is not Python: its name ends in .sh",
    "conf.yaml": "script=conf.yaml is not Python: its name ends in .yaml",
    "./start": "script=./start is not Python: its first line is #!/usr/bin/env bash",
    "./both": "script=./both is not Python: its first line is #!/bin/sh",
    "./binary": "script=./binary is not Python: it is a binary file",
    "./noise": "unexpected end of data\n",
    "broken.py": "project/broken.py:2: Missing parentheses in call to 'print'",
    "train.py recipe=gan": "script=train.py is for a script, and this is recipe=gan",
    "train.py script=other.py": "train.py and script=other.py are two scripts; name one",
    "train.py data/": "arguments of the script go after --: train.py ... -- data/",
    "train.py --lr 0.1": "arguments of the script go after --",
    "amp=o1 train.py": "train.py: a script has to be the first word: python -m launcher train.py",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_word_that_cannot_be_a_script_is_refused_by_every_verb_and_leaves_no_files(
    words: str, project: Path, refusal: Refusal
) -> None:
    (project / "sub").mkdir()
    (project / "run.sh").write_text("export X=1\n")
    (project / "conf.yaml").write_text("amp: o1\n")
    (project / "start").write_text("#!/usr/bin/env bash\necho x\n")
    (project / "both").write_text("#!/bin/sh\nexit\n")
    (project / "binary").write_bytes(b"\x7fELF\0\0")
    (project / "noise").write_bytes(b"import torch\nx = \xf0 \x8e\n")
    (project / "broken.py").write_text("import torch\nprint 'x'\n")
    for verb in ([], ["run"], ["plan"]):
        assert REFUSED[words] in refusal(*verb, *words.split())
    assert not (project.parent / "launcher-runs").exists()


def test_a_verb_takes_precedence_over_a_file_of_its_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "ls").write_text(TORCH)
    assert main(["ls"]) == 0
    assert "no runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "framework", "note"),
    [
        (TORCH, "torch", ""),
        ("from torch import nn\n", "torch", ""),
        (TENSORFLOW, "tensorflow", "framework=tensorflow, as train.py imports tensorflow"),
        ("def main():\n    from keras import layers\n", "tensorflow", "as train.py imports keras"),
        ("from paddle import nn\n", "paddle", "as train.py imports paddle"),
        ("import lightning as L\n", "torch", ""),
        ("import transformers\nimport tensorflow\n", "tensorflow", "imports tensorflow"),
        ("import helper\n", "tensorflow", "as train.py imports tensorflow"),
        ("print('x')\n", "torch", ""),
    ],
)
def test_the_framework_is_the_one_that_the_script_imports(text: str, framework: str, note: str, project: Path) -> None:
    (project / "train.py").write_text(text)
    (project / "helper.py").write_text("import package.inner\n")
    (project / "package").mkdir()
    (project / "package" / "__init__.py").write_text("")
    (project / "package" / "inner.py").write_text(TENSORFLOW)
    spec = spec_of("train.py", "amp=o0")
    assert spec.training.framework == framework
    assert note in "".join(spec.launch.notes)
    assert bool(spec.launch.notes) == bool(note)
    assert spec.assumed == (text == "print('x')\n")


@pytest.mark.parametrize(
    ("file", "line", "framework"),
    [("experiment/mine", "framework: paddle\n", "paddle"), ("recipe/mine", "", "tensorflow")],
)
def test_a_file_of_configuration_may_name_the_script_and_a_named_framework_takes_precedence(
    file: str, line: str, framework: str, project: Path
) -> None:
    (project / "train.py").write_text(TENSORFLOW)
    assert spec_of("train.py", "amp=o0", "framework=torch").training.framework == "torch"
    group = file.partition("/")[0]
    (project / group).mkdir()
    (project / f"{file}.yaml").write_text(f"recipe: script\nscript: train.py\n{line}")
    spec = spec_of("--config-dir", ".", f"{group}=mine", "amp=o0")
    assert (spec.launch.script, spec.training.framework) == ("train.py", framework)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TORCH + TENSORFLOW, "uses tensorflow and torch; say which of them trains: framework=tensorflow or"),
        *(
            (f"import os, keras\n{line}\n", "uses KERAS_BACKEND and keras")
            for line in (
                "os.environ['KERAS_BACKEND'] = 'keras'",
                "os.environ['KERAS_BACKEND'] == 'torch'",
                "os.environ.get('KERAS_BACKEND', 'torch')",
                "# os.environ['KERAS_BACKEND'] = 'torch'",
                "os.environ['KERAS_BACKEND'] = 'torch'\nos.environ['KERAS_BACKEND'] = name",
            )
        ),
    ],
)
def test_a_script_with_two_frameworks_needs_the_framework_named(text: str, says: str, project: Path) -> None:
    (project / "train.py").write_text(text)
    with pytest.raises(UsageError, match=says):
        spec_of("train.py")
    assert spec_of("train.py", "framework=torch").training.framework == "torch"


@pytest.mark.parametrize("line", ["os.environ['KERAS_BACKEND'] = '{}'", 'os.environ.setdefault("KERAS_BACKEND", "{}")'])
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_keras_trains_in_the_framework_that_the_script_sets(
    line: str, backend: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    (project / "train.py").write_text(f"import os\n{line.format(backend)}\nimport keras\n")
    assert spec_of("train.py", "amp=o0").training.framework == backend.replace("jax", "none")


@pytest.mark.parametrize(
    ("words", "framework"),
    [
        ([], "torch"),
        (["env.KERAS_BACKEND=jax"], "none"),
        (["cluster=slurm", "cluster.login=far"], "tensorflow"),
        (["cluster=slurm", "cluster.login=far", "env.KERAS_BACKEND"], "torch"),
        (["cluster=slurm", "cluster.login=far", "env_from=shell"], "torch"),
    ],
)
def test_keras_trains_in_the_framework_that_the_environment_of_the_job_sets(
    words: list[str], framework: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    (project / "train.py").write_text("import keras\n")
    assert spec_of("train.py", "amp=o0", *words).training.framework == framework


def test_the_environment_of_the_job_changes_no_framework_of_a_script_without_keras(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    (project / "train.py").write_text(TENSORFLOW)
    assert spec_of("train.py", "amp=o0").training.framework == "tensorflow"


@pytest.mark.parametrize(("others", "framework"), [("", "none"), (", tensorflow", "tensorflow"), (", timm", "torch")])
def test_a_script_in_jax_runs_in_no_framework_that_can_be_observed(others: str, framework: str, project: Path) -> None:
    (project / "train.py").write_text(f"import jax{others}\n")
    assert spec_of("train.py", "amp=o0").training.framework == framework


def test_a_framework_is_found_behind_relative_imports(project: Path) -> None:
    (project / "net").mkdir()
    (project / "net" / "train.py").write_text("from .parts.model import make\n")
    (project / "net" / "parts").mkdir()
    (project / "net" / "parts" / "model.py").write_text("from .. import layers\n")
    (project / "net" / "layers.py").write_text("import paddle\n")
    assert spec_of("net/train.py", "amp=o0").training.framework == "paddle"


def test_a_plan_shows_the_source_of_the_framework(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text(TENSORFLOW)
    assert main(["plan", "train.py", "amp=o0", "device=cpu"]) == 0
    screen = capsys.readouterr().out
    assert "imports of train.py: framework=tensorflow" in screen
    assert "note: framework=tensorflow, as train.py imports tensorflow" in screen
    assert "command line: script=train.py" in screen


def test_syntax_of_another_python_is_left_to_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text("import torch\nprint 'x'\n")
    words = ["plan", "train.py", "amp=o0", "train.bare=true", "require_proof=false"]
    assert main([*words, f"python={sys.executable}"]) == 0, capsys.readouterr().err
    assert main(words) == 2


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("python -m launcher tra", ["tracker=", "train.py"]),
        ("python -m launcher plan tr", ["tracker=", "train.py"]),
        ("amp-launcher sub/", []),
        ("amp-launcher train.py train.pro", ["train.processes="]),
        ("amp-launcher train.py amp=o", ["amp=o0", "amp=o1", "amp=o2", "amp=o3"]),
        ("amp-launcher ls tra", []),
    ],
)
def test_completion_offers_scripts_as_the_first_word(line: str, offers: list[str], project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "inner.py").write_text("")
    keys = [f"train.{name}=" for name in fields_of(find("mnist").settings)]
    assert [word for word in candidates(line) if word not in keys] == offers
