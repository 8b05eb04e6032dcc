"""What a job finds set: a short list by itself, what is named from the shell, and secrets by files of mode 0600. A
script on this machine finds all of the shell, but for what belongs to another job."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_launcher.around import plain_start
from launcher.__main__ import main
from launcher.commands import shell
from launcher.config import job_environment
from launcher.errors import UsageError
from launcher.executors import backends, execute
from launcher.plan.resolve import resolve
from launcher.probe import host, slurm_probing
from launcher.probe.facts import Script
from launcher.probe.questions import questions
from tests.launcher.config.conftest import Refusal
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.slurm.test_text import LOGIN

CHECKOUT = str(Path(__file__).parents[3])
SCRIPT = "import json, os\njson.dump(dict(os.environ), open(os.environ['WHERE'], 'w'))\n"
SHELL = {
    **{"LANG": "C.UTF-8", "TZ": "Europe/Zurich", "HF_HOME": "/scratch/hf", "https_proxy": "http://u:pw@proxy:1"},
    **{"LD_LIBRARY_PATH": "/opt/lib", "VIRTUAL_ENV": "/opt/venv", "CUDA_HOME": "/opt/cuda"},
    **{"WANDB_API_KEY": "hush-1", "DB_PASSWORD": "hush-2", "PYTHONPATH": CHECKOUT, "RANK": "3", "SLURM_JOB_ID": "7"},
    **{"PWD": "/tmp", "TERM": "xterm", "OMP_NUM_THREADS": "1", "LD_PRELOAD": "", "MY_FLAG": "a 'b' $(id)\n`c`"},
}


def typed(project: Path, *words: str, verb: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    own = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], "XDG_STATE_HOME": str(project.parent / "state")}
    asked = ["recipe=script", "script=train.py", "train.bare=true", "train.precision=script", "require_proof=false"]
    where = [f"run_root={project.parent}/runs", f"env.WHERE={project.parent}/variables.json", "telemetry.every=0"]
    argv = [sys.executable, "-m", "launcher", *verb, *asked, *where, *words]
    return subprocess.run(argv, cwd=project, env={**own, **SHELL, **more}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A script's run, given a variable and a secret by name: its folder, and the variables that it had."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "p").mkdir()
    (folder / "p/train.py").write_text(SCRIPT)
    more = {"CUDA_VISIBLE_DEVICES": "9", "NVIDIA_TF32_OVERRIDE": "1"}
    ended = typed(folder / "p", "env.MY_FLAG", "secrets.WANDB_API_KEY", **more)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    (run,) = (path for path in (folder / "runs").iterdir() if path.name[:1].isdigit())
    return run, json.loads((folder / "variables.json").read_text())


def test_a_script_on_this_machine_inherits_the_shell_but_for_another_jobs_variables(
    job: tuple[Path, dict[str, str]],
) -> None:
    _, values = job
    of_another, decided = {"RANK", "SLURM_JOB_ID"}, {"PWD", "PYTHONPATH"}
    expected = {name: text for name, text in SHELL.items() if name not in of_another | decided}
    assert {name: values.get(name) for name in expected} == expected
    assert (values["HOME"], values["NVIDIA_TF32_OVERRIDE"]) == (os.environ["HOME"], "1")
    assert not of_another & set(values)
    assert values["CUDA_VISIBLE_DEVICES"] != "9" and values["PYTHONPATH"].endswith(f":{CHECKOUT}")


def test_a_recipe_has_the_packages_that_its_plan_found_by_the_shells_search_path(tmp_path: Path) -> None:
    for name in ("lib", "p"):
        (tmp_path / name).mkdir()
    its = f"open({str(tmp_path / 'found')!r}, 'w').close(), os._exit(9)"
    (tmp_path / "lib/sitecustomize.py").write_text(f"import os\nif 'LAUNCHER_SPEC' in os.environ: {its}\n")
    own = {**{name: os.environ[name] for name in ("HOME", "PATH")}, "XDG_STATE_HOME": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "launcher", "recipe=simplenet", "device=cpu", f"run_root={tmp_path}/runs"]
    environment = {**own, "PYTHONPATH": f"../lib{os.pathsep}{CHECKOUT}"}
    ended = subprocess.run(argv, cwd=tmp_path / "p", env=environment, capture_output=True, text=True)
    assert (tmp_path / "found").exists(), ended.stderr + ended.stdout


@pytest.mark.parametrize("recipe", ["recipe=simplenet", "recipe=script script=train.py"])
@pytest.mark.parametrize(
    ("place", "queue", "searches"),
    [
        ("cluster=local", "direct", True),
        ("cluster=ssh cluster.host=box", "direct", True),
        ("cluster=slurm", "slurm", False),
        ("cluster=slurm cluster.login=box", "slurm", False),
    ],
)
def test_a_plan_finds_the_packages_that_its_job_searches(
    recipe: str, place: str, queue: str, searches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`facts_of` is asked on the host that starts the job, this one or the other, with that host's PYTHONPATH."""
    (tmp_path / "lib/paddle").mkdir(parents=True)
    (tmp_path / "lib/paddle/__init__.py").touch()
    (tmp_path / "train.py").write_text("import paddle\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setattr(slurm_probing, "probe", lambda: LOGIN.slurm)
    spec = spec_of(*recipe.split(), *place.split(), "device=cpu", "amp=o0", "python=/usr/bin/python3")
    plan = resolve(
        spec,
        dataclasses.replace(
            LOGIN, run_root="/shared/runs", scripts={"train.py": Script(path="/p/train.py", name="script/train.py")}
        ),
    )
    facts = host.facts_of(questions([spec]))
    started = execute.environment_of(plan).get("PYTHONPATH")
    assert (plan.queue, "paddle" in facts.packages, started) == (
        *(queue, searches),
        f"{tmp_path}/lib" if searches else None,
    )


def test_a_value_is_in_one_file_and_a_secret_ends_with_its_run(
    job: tuple[Path, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = job
    assert (folder / ".environment").stat().st_mode & 0o777 == 0o600
    assert not (folder / ".secrets").exists()
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_text()
        assert "hush-1" not in text and "hush-2" not in text, path
        assert path.name == ".environment" or ("$(id)" not in text and "u:pw@proxy" not in text), path
    place = shell._of_run([folder.name], [f"run_root={folder.parent}"])
    assert place.plan.secrets == {} and "MY_FLAG" in place.plan.passed
    assert "without WANDB_API_KEY: the run's own secrets were deleted when it ended" in capsys.readouterr().err


def test_what_stays_behind_is_counted_by_every_run_elsewhere_and_named_by_plan_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    words = ("plan", "device=cpu", "env.CUDA_HOME", f"run_root={tmp_path}")
    assert main([*words, "--all"]) == main([*words, "--json"]) == main([*words]) == 0
    screen = capsys.readouterr().out
    (line,) = (line for line in screen.splitlines() if "not passed on" in line)
    for name in ("MY_FLAG", "WANDB_API_KEY", "DB_PASSWORD", "OMP_NUM_THREADS"):
        assert f" {name}" in line
    for name in ("PYTHONPATH", "CUDA_HOME", "PWD", "TERM", "HF_HOME", "LD_LIBRARY_PATH", "RANK"):
        assert f" {name}," not in line
    assert "note: passed on from this shell: CUDA_HOME\n" in screen
    assert all(text not in screen for text in ("hush", "u:pw", "stay behind"))
    far = resolve(
        spec_of("cluster=ssh", "cluster.host=box"), dataclasses.replace(LAPTOP, shell=job_environment.of_shell(SHELL))
    )
    noted = "7 variables of this shell stay behind: env.NAME takes one along, env_from=shell all but secrets"
    assert [line for line in far.advice if "stay behind" in line] == [f"{noted}; `plan --all` names them"]


@pytest.mark.parametrize(
    ("name", "is_inherited"),
    [(name, True) for name in ("LR", "SLURM_CONF", "LAUNCHED", "MASTER", "BASH_FUNC_module%%", "IFS", "UID", "PWD")]
    + [(name, False) for name in ("RANK", "MASTER_ADDR", "ROLE_RANK", "SLURM_JOB_ID", "LAUNCHER_ATTEMPT", "OMPI_X")],
)
def test_a_script_inherits_a_variable_under_its_own_name_or_gets_it_back(name: str, is_inherited: bool) -> None:
    started = job_environment.for_script({name: "value"}, bare=False)
    plain_start.restore_variables(started, "", Path("value"))
    assert int(started.pop(plain_start.UMASK), 8) >= 0 and started == ({name: "value"} if is_inherited else {})


def test_bash_on_the_way_has_the_functions_of_modules_and_no_others() -> None:
    functions = {"BASH_FUNC_module%%": "() { :; }", "BASH_FUNC_mine%%": "() { :; }"}
    started = job_environment.for_script({**functions, "LR": "1"}, bare=False)
    assert set(started) == {"BASH_FUNC_module%%", f"{plain_start.OF_SHELL}BASH_FUNC_mine%%", "LR", plain_start.UMASK}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("env.NOT_SET", r"env.NOT_SET has no value, and NOT_SET is not set in this shell; say env.NOT_SET=VALUE"),
        ("env.PATH", r"env.PATH has no value, and PATH is the place's own"),
        ("env.NVIDIA_TF32_OVERRIDE", r"a plan depends on it; say env.NVIDIA_TF32_OVERRIDE=VALUE"),
    ],
)
def test_a_variable_that_cannot_be_passed_on_is_refused(words: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve(spec_of(words), dataclasses.replace(LAPTOP, shell=tuple(SHELL)))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a\0b", "contains a NUL byte"),
        (b"x" * 200_000, "is larger than 100 KiB"),
    ],
)
def test_what_can_be_no_secret_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    assert job_environment.problem(content).startswith(says)
    assert job_environment.file_problem(path).startswith(says)


def test_a_secret_that_is_not_there_or_open_to_others_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    words = ("plan", "device=cpu", f"run_root={tmp_path}")
    assert "secrets.NOT_SET: NOT_SET is not set in this shell" in refusal(*words, "secrets.NOT_SET")
    assert "secrets.LD_PRELOAD: LD_PRELOAD is empty" in refusal(*words, "secrets.LD_PRELOAD")
    assert f"secrets.A={tmp_path} is not a file" in refusal(*words, f"secrets.A={tmp_path}")
    path = tmp_path / "key"
    path.write_text("hush")
    path.chmod(0o640)
    assert f"secrets.A={path} can be read by others; run chmod 600 {path}" in refusal(*words, f"secrets.A={path}")


def test_secrets_are_known_by_their_names() -> None:
    secret = "HF_TOKEN GITHUB_PAT aws_secret_access_key MYSQL_PWD_PASS APIKEY TOKEN".split()
    others = "TOKENIZERS_PARALLELISM MAX_TOKENS KEYS PATH PASSES MONKEY PATTERN".split()
    assert [name for name in (*secret, *others) if job_environment.looks_secret(name)] == secret


def test_secrets_of_a_run_that_was_killed_go_when_it_is_seen_and_those_of_one_laid_anew_stay(tmp_path: Path) -> None:
    for name, newer in (("killed", False), ("again", True)):
        folder = tmp_path / name
        folder.mkdir()
        job_environment.write_secrets({folder / ".secrets/A": b"hush"})
        (folder / "status.json").write_text("{}")
        stamp = (folder / ".secrets").stat().st_mtime + (-5 if newer else 5)
        os.utime(folder / "status.json", (stamp, stamp))
        backends.forget_secrets(folder)
        assert (folder / ".secrets").exists() is newer
    assert (tmp_path / "again/.secrets/A").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match=r"secrets\.B: its value contains a NUL byte"):
        job_environment.write_secrets({tmp_path / "again/.secrets/B": b"a\0"})
