"""Plans through submitit: our executor, and submitit's own."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core import plugins

from launcher.errors import UsageError
from launcher.executors.execute import execute
from launcher.executors.functions import FunctionJob
from launcher.executors.job import RunJob
from launcher.executors.local.executor import LocalExecutor
from launcher.executors.slurm.executor import SlurmExecutor, gpus_of
from launcher.executors.ssh import submit_client
from launcher.executors.ssh.executor import SshExecutor
from launcher.executors.submission import Source
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import remote_record, store
from launcher.runs.address import Address
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import until
from tests.launcher.stand_in import lay

RESULT = "open(sys.argv[-1][4:] + '/result.json', 'w').write(json.dumps({'level': 'o2'}))"


@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_execute_on_submitits_own_executors_gives_the_result(
    tmp_path: Path, program: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LocalExecutor(tmp_path / "runs", ["telemetry.every=0"]).plan("batch=64")
    words = {"DUMP": str(tmp_path / "dump"), "BEHAVIOUR": RESULT}
    plan = dataclasses.replace(made, python=str(program), env={**made.env, **words})
    executor = submitit.AutoExecutor(folder=tmp_path / "submitit", cluster=cluster)
    executor.update_parameters(timeout_min=1)
    assert executor.submit(execute, plan).result() == {"level": "o2", "attempts": 1}


def test_a_batch_runs_its_cells_in_turn(tmp_path: Path, program: Path) -> None:
    plan, _ = lay(tmp_path, program, env={"BEHAVIOUR": f"time.sleep(0.2); {RESULT}"})
    plans = [dataclasses.replace(plan) for _ in range(3)]
    executor = LocalExecutor()
    with executor.batch():
        jobs = [executor.submit(execute, plan) for plan in plans]
    assert [job.result() for job in jobs] == [{"level": "o2", "attempts": 1}] * 3
    spans = [json.loads((job.run_dir / "status.json").read_text()) for job in jobs]
    assert all(before["ended"] <= after["started"] for before, after in itertools.pairwise(spans))


def test_a_run_outlives_the_launcher_that_started_it(tmp_path: Path, program: Path) -> None:
    _, folder = lay(tmp_path, program, env={"BEHAVIOUR": f"time.sleep(1.5); {RESULT}"})
    text = (
        "import json, sys, time\nfrom pathlib import Path\nfrom launcher.executors import submission\n"
        "from launcher.plan import record\n"
        "plan = record.from_json(json.load(open(sys.argv[1] + '/plan.json')))\n"
        "submission.start([Path(sys.argv[1])], [plan]); print('started', flush=True); time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", text, str(folder)], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started\n"
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    until(lambda: (folder / "result.json").exists() and store.read_or_empty(folder / "status.json")["state"] == "done")


def test_the_id_of_a_run_elsewhere_is_read_from_no_file_that_its_host_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pointer = remote_record.Pointer(address=Address(destination="far"), root="/runs", token="t")
    folder = remote_record.create("20260102-030405-brave-otter", pointer)
    (tmp_path / "answer").write_text("12\n")
    store.write_json(folder / "submission.json", {"schema": 1, "queue": "slurm", "answer": str(tmp_path / "answer")})
    assert RunJob(folder).job_id == folder.name


def test_each_plan_of_a_batch_for_a_host_has_its_own_secrets_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Mapping[str, str | None]]] = []

    def submitted(plans: Sequence[Plan], facts: object, code: object, address: object, secrets: Any) -> list[Path]:
        asked.append(secrets)
        return []

    monkeypatch.setattr(submit_client, "submit", submitted)
    spec = spec_of("cluster=ssh", "cluster.host=far", "secrets.TOKEN=/home/me/token")
    plan = dataclasses.replace(resolve(spec_of("cluster=ssh", "cluster.host=far"), LAPTOP), secrets={"TOKEN": "/there"})
    executor = SshExecutor()
    executor.knows(Source(plan, spec.launch.secrets, LAPTOP.code))
    executor._submit([dataclasses.replace(plan, secrets={}), plan])
    assert asked == [[{}, {"TOKEN": "/home/me/token"}]]


def test_the_entry_point_is_the_local_executor_which_submitit_chooses_by_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    (named,) = re.findall(r'entry-points\.submitit\]\nexecutor = "(.*)"', text)
    entry = EntryPoint("executor", named, "submitit")
    monkeypatch.setattr(plugins, "_iter_submitit_entrypoints", lambda: [entry])  # whatever is installed
    for cached in (plugins._get_plugins, plugins.get_executors):
        cached.cache_clear()
    ours = submitit.AutoExecutor(tmp_path / "runs", cluster="direct")
    ours.update_parameters(name="chosen", gpus_per_node=0)
    job = ours.submit(max, 3, 4)
    assert (job.result(), isinstance(job, FunctionJob)) == (4, True)
    assert store.read_or_empty(job.run_dir / "plan.json")["name"] == "chosen"
    theirs = submitit.AutoExecutor(tmp_path / "theirs", cluster="local")
    assert type(theirs._executor) is submitit.LocalExecutor
    assert submitit.AutoExecutor.which() in ("local", "slurm") and LocalExecutor.affinity() == 0


def test_a_plan_of_a_script_is_asked_for_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    plan = LocalExecutor(tmp_path / "runs").plan(str(tmp_path / "train.py"), "amp=o1", "--", "--lr", "1")
    assert plan.script and plan.script.line().endswith("train.py --lr 1")


def test_what_is_wrong_in_a_plan_is_said_without_a_place_that_a_program_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^gpus=99: .* has [^()]*$"):
        LocalExecutor(tmp_path / "runs").plan("gpus=99")


def test_a_batch_looks_at_its_host_and_code_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, other = tmp_path / "train.py", tmp_path / "other.py"
    script.write_text("import torch\n")
    other.write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    executor = LocalExecutor(tmp_path / "runs")
    words = ("train.py", "workdir=run")
    with executor.batch():
        first = executor.plan(*words, "amp=o0")
        script.write_text("import torch  # edited\n")
        same = executor.plan(*words, "amp=o1", "name=another")
        of_other_script = executor.plan("other.py", "workdir=run", "amp=o0")
        with pytest.raises(UsageError, match="nowhere"):
            executor.plan(*words, "amp=o0", f"script.inputs=[{tmp_path}/nowhere]")
    assert first.code == same.code != of_other_script.code
    assert executor.plan(*words, "amp=o0").code != first.code  # each plan for itself looks anew


def test_plans_of_the_same_code_keep_one_list_of_its_files(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path / "runs")
    plans = [executor.plan(f"seed={seed}") for seed in range(3)]
    assert len({id(executor._sources[id(plan)].code) for plan in plans}) == 1


def test_submitits_parameters_are_the_settings_that_mean_the_same() -> None:
    executor = SlurmExecutor("/runs", ["cluster.qos=low"])
    setup = ["module load cuda", 'echo "a, größe"']
    of_launch = {"name": "night", "nodes": 2}
    of_cluster = {"account": "me", "constraint": "a100&nvlink", "partition": "gpu", "qos": "high", "wckey": "key"}
    assert [gpus_of(gres) for gres in ("gpu", "gpu:2", "gpu:a100:2")] == ["1", "2", "a100:2"]
    for gres in ("gpu:a100", "tape:2", "gpu:2,tape:1"):
        with pytest.raises(ValueError, match=f"slurm_gres='{gres}': should be gpu:2, or gpu:a100:2"):
            gpus_of(gres)
    other = {"timeout_min": 90, "mem_gb": 1.5, "cpus_per_task": 8, "gpus_per_node": 4, "slurm_array_parallelism": 3}
    slurm = {f"slurm_{name}": value for name, value in of_cluster.items()}
    executor.update_parameters(**of_launch, **slurm, **other, slurm_setup=setup, slurm_signal_delay_s=60)
    executor.update_parameters(slurm_exclude="node[1-2],node4", slurm_gres="gpu:3")
    assert executor._spec([]).launch.gpus == 3
    launch = executor._spec(["gpus=1"]).launch
    assert launch.cluster.exclude == "node[1-2],node4"
    assert {name: getattr(launch, name) for name in (*of_launch, "gpus")} == {**of_launch, "gpus": 1}
    expected = {**of_cluster, "time": "90", "mem": "1536M", "cpus": 8, "parallel": 3, "stop_before": 60}
    assert {name: getattr(launch.cluster, name) for name in expected} == expected
    assert (launch.run_root, list(launch.cluster.setup)) == ("/runs", setup)
