"""Hydra's multirun through the launcher: Hydra's own suites, then what is ours."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import antlr4
import cloudpickle
import hydra
import omegaconf
import packaging
import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

from launcher.__main__ import main
from launcher.executors import backends
from launcher.runs import selection, store
from tests.launcher import warm
from tests.launcher.run_folders import end_all, until
from tests.launcher.slurm.bench import enter

ROOT = Path(__file__).parents[2]
HELPER = "def doubled(value):\n    return 2 * value\n"
APP = """\
import os, time
import hydra
from omegaconf import OmegaConf
from hydra.core.config_store import ConfigStore
import helper

ConfigStore.instance().store(name="app", node=OmegaConf.create({"lr": 0.1, "seed": 0, "mark": "${oc.env:MARK}"}))


@hydra.main(config_name="app", config_path=None, version_base=None)
def main(cfg):
    print("lr", cfg.lr, cfg.mark, flush=True)
    while cfg.lr == 7 and not os.path.exists("go"):
        time.sleep(0.05)
    if cfg.lr > 8:
        raise ValueError("lr is too high")
    return helper.doubled(cfg.lr)


if __name__ == "__main__":
    main()
"""
TRAINS = """\
import os
import hydra
from omegaconf import OmegaConf
from hydra.core.config_store import ConfigStore

node = OmegaConf.create({"steps": 4, "half": False, "mark": "${oc.env:MARK}"})
ConfigStore.instance().store(name="app", node=node)


@hydra.main(config_name="app", config_path=None, version_base=None)
def main(cfg):
    import torch  # not in the process that submits

    print(f"in {os.environ.get('APPTAINER_CONTAINER')}, {cfg.mark}")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(cfg.steps):
        with torch.autocast("cpu", torch.bfloat16) if cfg.half else torch.enable_grad():
            loss = model(torch.ones(8, 64)).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of runs; what a test started in it is ended."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MARK", "of this shell")
    folder = tmp_path / "runs"
    yield folder
    end_all(folder)


@pytest.fixture
def launcher_name() -> str:
    return "amp_local"


@pytest.fixture
def extra_flags(runs: Path) -> list[str]:
    quiet = ["hydra/hydra_logging=disabled", "hydra/job_logging=disabled"]
    return ["-m", *quiet, "hydra/launcher=amp_local", f"hydra.launcher.run_root={runs}"]


@pytest.fixture
def task_launcher_cfg() -> dict[str, Any]:
    return {}


class TestLauncher(LauncherTestSuite):
    # The first is test_sweep_1_job word for word; the groups of the second are swept in batches below.
    test_sweep_1_job_strict = test_sweep_2_optimizers = None  # type: ignore[assignment]

    @pytest.fixture
    def overrides(self, runs: Path) -> list[str]:
        return [f"hydra.launcher.run_root={runs}", "hydra.launcher.timeout_min=2"]


class TestBatches(BatchedSweeperTestSuite):
    @pytest.fixture
    def overrides(self, runs: Path) -> list[str]:
        return [f"hydra.launcher.run_root={runs}", "hydra.sweeper.max_batch_size=2"]


class TestIntegration(IntegrationTestSuite):
    # What names and folders Hydra makes of a configuration doesn't depend on the launcher.
    test_custom_task_name = test_custom_sweeper_run_workdir = None  # type: ignore[assignment]
    # test_to_absolute_path_multirun has a path that begins with that folder.
    test_get_orig_dir_multirun = None  # type: ignore[assignment]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An application whose modules are found beside it alone, and a folder to start it in."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "app.py").write_text(APP)
    (tmp_path / "work").mkdir()
    return folder / "app.py"


def multirun(app: Path, runs: Path, *words: str, place: str = "local") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(app), "-m", f"hydra/launcher=amp_{place}", f"hydra.launcher.run_root={runs}", *words]
    return subprocess.run(command, cwd=runs.parent / "work", capture_output=True, text=True, timeout=300)


def swept(runs: Path) -> list[tuple[Any, str]]:
    """What each run of the only sweep was given and how it stands."""
    rows = backends.states_of(reversed(selection.newest([str(runs)], 10)))
    plans = [store.read_or_empty(row.run.folder / "plan.json") for row in rows]  # one that is made has none yet
    return [(plan.get("swept"), row.state.name) for plan, row in zip(plans, rows, strict=True)]


def test_hydra_finds_both_and_loads_nothing_else_for_them() -> None:
    names = {plugin.__name__ for plugin in Plugins.instance().discover(Launcher)}
    assert {"LocalLauncher", "SlurmLauncher"} <= names
    text = (
        "import sys\nfrom hydra.core.plugins import Plugins\nPlugins.instance()\n"
        "import hydra_plugins.amp_launcher_plugin.launchers\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('launcher', 'submitit', 'amp_launcher')])"
    )
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout == "[]\n"


def test_jobs_find_the_modules_and_variables_of_the_application_and_one_that_fails_is_named(
    app: Path, runs: Path
) -> None:
    done = multirun(app, runs, "lr=0.1,9", "seed=3", "hydra.sweep.dir=out")
    assert done.returncode == 1
    assert "ValueError: lr is too high" in done.stderr and "Error executing job with overrides: ['lr=9'" in done.stderr
    assert swept(runs) == [([["lr", "0.1"]], "done"), ([["lr", "9"]], "failed")]
    (first, _) = reversed(selection.newest([str(runs)], 10))
    assert (first.folder / "attempts/1/stdout.log").read_text() == "lr 0.1 of this shell\n"
    # Without a mode nothing is around an application.
    assert "amp=" not in done.stdout and not (runs.parent / "work/out/0/launcher-result.json").exists()
    assert "amp_launcher.torch" not in (first.folder / "run.sh").read_text()
    assert store.read_or_empty(first.folder / "plan.json")["words"] == []


def test_without_waiting_it_returns_when_the_jobs_are_submitted(app: Path, runs: Path) -> None:
    done = multirun(app, runs, "lr=7,0.2", "hydra.launcher.wait=false")
    assert done.returncode == 0, done.stderr
    assert "python -m launcher watch" in done.stdout
    assert {state for _, state in swept(runs)} <= {"queued", "running"}
    (runs.parent / "work" / "go").touch()
    until(lambda: [state for _, state in swept(runs)] == ["done", "done"])


def test_ctrl_c_leaves_the_jobs_and_says_how_to_end_them(app: Path, runs: Path) -> None:
    words = ["-m", "hydra/launcher=amp_local", f"hydra.launcher.run_root={runs}", "lr=7", "+extra=1,2"]
    command, work = [sys.executable, str(app), *words], runs.parent / "work"
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        until(lambda: [state for _, state in swept(runs)] == ["running", "queued"])
        process.send_signal(signal.SIGINT)
        assert "the jobs go on: python -m launcher cancel" in process.stdout.read()
    (work / "go").touch()
    until(lambda: swept(runs) == [([["extra", "1"]], "done"), ([["extra", "2"]], "done")])


def test_a_key_that_cannot_be_carried_out_is_refused_in_a_sentence(app: Path, runs: Path) -> None:
    done = multirun(app, runs, "lr=1,2", "+hydra.launcher.queue=x")
    message = "hydra/launcher=amp_local: hydra.launcher.queue is not a key of it (wait, run_root, words, amp"
    assert (done.returncode, done.stderr[: len(message)]) == (1, message)
    assert "Traceback" not in done.stderr and selection.run_names(str(runs)) == []


@pytest.mark.usefixtures("hydra_restore_singletons")
@pytest.mark.parametrize(
    ("place", "word", "message"),
    [
        ("local", "amp=o9", "amp=o9 is not one of o0, o1, o2, o3, bf16-mixed"),
        ("local", "container=podman", "container=podman needs image="),
        ("local", "run_root=/proc/nothing", "run_root=/proc/nothing"),
        ("local", "nodes=2", "nodes=2"),
        ("slurm", "gres=tape", "slurm_gres='tape': should be gpu:2"),
    ],
)
def test_so_is_each_value_of_a_key(
    hydra_sweep_runner: Any, runs: Path, tmp_path: Path, place: str, word: str, message: str
) -> None:
    words = [f"hydra/launcher=amp_{place}", f"hydra.launcher.run_root={runs}", "+lr=1,2", f"hydra.launcher.{word}"]
    config = ("hydra.test_utils.a_module", None, "configs", "compose.yaml")
    with pytest.raises(CompactHydraException, match=rf"^hydra/launcher=amp_{place}: .*{re.escape(message)}"):
        hydra_sweep_runner(None, *config, words, tmp_path / "out").__enter__()
    assert selection.run_names(str(runs)) == []


@pytest.mark.parametrize(
    ("place", "keys", "message"),
    [
        ("local", {"mem_gb": 2.0}, "mem_gb=2.0 is for amp_slurm"),
        ("slurm", {"comment": "hello"}, "hydra.launcher.comment is not a key of it (wait, run_root, words, amp"),
        ("local", {"wait": False}, "wait=false gives no values to hydra_plugins.other.Sweeper"),
    ],
)
def test_what_hydra_submitit_launcher_takes_and_cannot_be_is_refused(
    place: str, keys: dict[str, Any], message: str
) -> None:
    from hydra_plugins.amp_launcher_plugin import _multirun
    from launcher import LauncherError

    with pytest.raises(LauncherError, match=re.escape(message)):
        _multirun.check_keys({"wait": True, **keys}, place, "hydra_plugins.other.Sweeper")


@pytest.fixture
def trains(app: Path) -> Path:
    """An application that trains in torch, in an autocast of its own where it is told to."""
    app.write_text(TRAINS)
    return app


def in_torch(trains: Path, runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return multirun(trains, runs, f"hydra.launcher.python={warm.python()}", "hydra.sweep.dir=out", *words)


def test_a_mode_is_applied_and_its_proof_is_seen_on_the_screen_in_the_output_and_in_the_runs(
    trains: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_torch(trains, runs, "steps=0,4", "hydra.launcher.amp=o1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"#0 : \S+-000 : amp=o1 nothing to prove: it took no optimizer step", done.stdout)
    assert re.search(r"#1 : \S+-001 : amp=o1 proved: bfloat16 in 100", done.stdout)
    left = json.loads((runs.parent / "work/out/1/launcher-result.json").read_text())
    assert (left["observed"]["verdict"], left["updates"]["attempted"]) == ("proved", 4)
    assert main(["ls", f"run_root={runs}"]) == 0
    assert re.search(r"\bproved +app amp=o1 steps=4\n", capsys.readouterr().out)


def test_a_job_that_runs_in_another_mode_fails_with_what_ran(trains: Path, runs: Path) -> None:
    done = in_torch(trains, runs, "half=true", "hydra.launcher.amp=o0")
    assert done.returncode == 1
    assert "amp=o0 contradicted: step 1: o0 is float32, but these ran: linear in bfloat16" in done.stdout
    assert "what ran was not amp=o0" in done.stderr and swept(runs) == [([], "failed")]
    assert json.loads((runs.parent / "work/out/0/launcher-result.json").read_text())["status"] == "failed"


@pytest.mark.testbed
def test_a_job_in_a_container_is_proved_with_nothing_of_ours_in_the_image(
    trains: Path, runs: Path, testbed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enter(testbed, monkeypatch)
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    (ours := tmp_path / "site-packages").mkdir()  # like an environment's: it is not mounted
    for name in ("launcher", "amp_launcher", "hydra_plugins", "conf"):
        (ours / name).symlink_to(ROOT / name)
    (libraries := tmp_path / "libraries").mkdir()
    for module in (hydra, omegaconf, antlr4, yaml, packaging, cloudpickle):
        shutil.copytree(Path(module.__file__ or "").parent, libraries / module.__name__)
    monkeypatch.setenv("PYTHONPATH", f"{ours}:{libraries}")
    words = ["hydra.launcher.amp=o1", "hydra.launcher.container=apptainer", f"hydra.sweep.dir={tmp_path}/out"]
    words += [f"hydra.launcher.image={testbed.images['torch'].sif}"]
    done = multirun(trains, runs, "steps=2", *words, place="slurm")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("amp=o1 proved") == 1
    left = json.loads((tmp_path / "out/0/launcher-result.json").read_text())
    assert (left["observed"]["verdict"], left["updates"]["attempted"]) == ("proved", 2)
    (run,) = selection.newest([str(runs)], 10)
    assert f"in {testbed.images['torch'].sif}, of this shell\n" in (run.folder / "attempts/1/stdout.log").read_text()


@pytest.mark.testbed
def test_a_multirun_on_slurm_is_one_array_with_the_shells_variables(
    app: Path, runs: Path, testbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(testbed, monkeypatch)
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", "0.5")
    limits = ["hydra.launcher.timeout_min=5", "hydra.launcher.mem_gb=0.5", "hydra.launcher.array_parallelism=2"]
    done = multirun(app, runs, "lr=1,2,3", *limits, "hydra.launcher.setup=['export A=1']", place="slurm")
    assert done.returncode == 0, done.stderr
    assert swept(runs) == [([["lr", str(lr)]], "done") for lr in (1, 2, 3)]
    folders = [run.folder for run in selection.newest([str(runs)], 10)]
    assert {(folder / "attempts/1/stdout.log").read_text() for folder in folders} == {
        f"lr {lr} of this shell\n" for lr in (1, 2, 3)
    }
    answers = {json.loads((folder / "submission.json").read_text())["answer"] for folder in folders}
    assert len(answers) == 1  # of one sbatch
    plan = json.loads((folders[0] / "plan.json").read_text())
    assert (plan["cluster"]["time"], plan["cluster"]["mem"], plan["cluster"]["parallel"]) == ("5", "512M", 2)
