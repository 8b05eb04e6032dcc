"""Plans for Slurm as text: what the cluster's facts allow, headers, scripts."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher import bash_files
from launcher.errors import UsageError
from launcher.executors import plan_changes
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.plan.plan_summary import resources
from launcher.plan.resolve import resolve
from launcher.probe import slurm_preemption, slurm_probing
from launcher.probe.facts import Facts, Partition, Script, SlurmFacts
from launcher.script.render import array, render, supervisor
from launcher.script.slurm_header import header, shape
from tests import golden
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.slurm.counted import Programs

GOLDEN = Path(__file__).parent / "golden"


def partition(name: str, **changes: object) -> Partition:
    values = {"default": False, "up": True, "max_minutes": None, "nodes": 2, "gpus_per_node": 4, "cpus_per_node": 8}
    values |= {"memory_mib_per_node": 131072, "cpus_per_gpu": 2}
    return Partition(name=name, **{**values, **changes})  # type: ignore[arg-type]


CLUSTER = SlurmFacts(
    version="22.05.8",
    cluster="testbed",
    partitions=(
        partition("gpu", default=True),
        partition("short", max_minutes=5),
        partition("closed", up=False),
        partition("cpu", gpus_per_node=0, cpus_per_gpu=0),
    ),
    max_array_size=1001,
    accounting=True,
    environment={"PATH": "/opt/slurm/bin:/usr/bin:/bin", "SLURM_CONF": "/etc/slurm/slurm.conf"},
    nodes_are_here=False,
)
LOGIN = dataclasses.replace(LAPTOP, host="login", slurm=CLUSTER)
WITH_TENSORFLOW = dataclasses.replace(LOGIN, packages={"tensorflow": "2.21.0"})


def plan_of(*words: str, facts: Facts = LOGIN) -> Plan:
    return resolve(spec_of("cluster=slurm", *words), facts)


def test_facts_are_read_from_what_the_programs_print() -> None:
    settings = "ClusterName             = testbed\nMaxArraySize            = 42\nSLURM_VERSION           = 22.05.8\n"
    rows = [
        "gpu*|up|infinite|8|gpu:4|n1|1|65536",
        "gpu*|up|infinite|16+|gpu:a100:8|n2|1|131072+",
        "short|down|5:00|8|(null)|n1|1|131072",
    ]
    facts = slurm_probing.read(settings + "AccountingStorageType   = accounting_storage/slurmdbd\n", rows, "n1", {})
    assert facts.partitions[0] == partition(
        "gpu",
        default=True,
        gpus_per_node=8,
        cpus_per_node=16,
        gpu_types=("", "a100"),
        gpus_of_type={"": 4, "a100": 8},
    )
    assert facts.partitions[1] == partition("short", up=False, max_minutes=5, nodes=1, gpus_per_node=0, cpus_per_gpu=0)
    assert (facts.max_array_size, facts.accounting, facts.nodes_are_here) == (42, True, False)


PARTITIONS_SHOWN = """\
PartitionName=gpu AllowQos=ALL GraceTime=30 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=short AllowQos=ALL GraceTime=60 PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=cpu AllowQos=ALL GraceTime=0 PriorityTier=1 PreemptMode=GANG,SUSPEND State=UP
PartitionName=top AllowQos=ALL GraceTime=60 PriorityTier=20 PreemptMode=REQUEUE State=UP
"""
QOS_SHOWN = "normal||cluster|00:02:30\nhigh|normal,low|cluster|00:00:00\nlow||cancel|1-00:00:10\n"


def test_what_may_be_preempted_is_read_from_partitions_or_qos() -> None:
    (short,) = slurm_preemption.of_partitions(PARTITIONS_SHOWN)
    assert (short.by, short.name, short.mode, short.grace) == ("partition", "short", "requeue", 60)
    normal, low = slurm_preemption.of_qos(QOS_SHOWN, "REQUEUE")
    assert (normal.name, normal.mode, normal.grace) == ("normal", "requeue", 150)
    assert (low.name, low.mode, low.grace) == ("low", "cancel", 86410)
    assert list(slurm_preemption.of_qos(QOS_SHOWN, "SUSPEND,GANG")) == [low]


def test_accounts_that_do_not_answer_refuse_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_preemption.probe({"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}) == ()


@pytest.mark.parametrize(
    ("by", "changes", "words", "grace", "heard"),
    [
        ("partition", {}, ("cluster.partition=short",), 60, True),
        ("partition", {}, (), None, False),
        ("partition", {"preempts_by_signal": True}, ("cluster.partition=short",), 60, False),
        ("partition at once", {}, ("cluster.partition=short",), 0, False),
        ("qos", {}, (), 150, True),
        ("qos", {}, ("cluster.qos=high",), None, False),
    ],
)
def test_a_plan_has_the_grace_time_and_its_script_hears_of_a_preemption(
    by: str, changes: dict[str, bool], words: tuple[str, ...], grace: int | None, heard: bool
) -> None:
    found = {
        "partition": tuple(slurm_preemption.of_partitions(PARTITIONS_SHOWN)),
        "partition at once": tuple(slurm_preemption.of_partitions(PARTITIONS_SHOWN.replace("=60", "=0"))),
        "qos": tuple(slurm_preemption.of_qos(QOS_SHOWN, "REQUEUE")),
    }
    cluster = dataclasses.replace(CLUSTER, preemptible=found[by], **changes)
    plan = plan_of("gpus=0", *words, facts=dataclasses.replace(LOGIN, slurm=cluster))
    assert (plan.preemption and plan.preemption.grace) == grace
    assert record.from_json(record.to_json(plan)).preemption == plan.preemption
    assert (f"may be preempted (requeue, {grace} s of grace)" in resources(plan)) == (grace is not None)
    assert ("hear_preemption" in render(plan)) == heard


def with_gpus(*types: str) -> Facts:
    """The cluster, with GPUs of these types in its default partition."""
    partitions = (partition("gpu", default=True, gpu_types=types), *CLUSTER.partitions[1:])
    return dataclasses.replace(LOGIN, slurm=dataclasses.replace(CLUSTER, partitions=partitions))


@pytest.mark.parametrize(
    ("types", "words", "message"),
    [
        (("v100",), ("amp=o2", "amp.dtype=bfloat16"), "needs compute capability 8.0, and this GPU has 7.0"),
        (("p100",), ("amp=o1",), "amp=o1 needs compute capability 7.0 for half-precision tensor cores"),
        (("v100",), ("amp=o0", "tf32=true"), "TF32 needs compute capability 8.0, and this GPU has 7.0"),
    ],
)
def test_a_mode_that_no_gpu_of_the_partition_has_is_refused_before_queueing(
    types: tuple[str, ...], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_of("gpus=1", *words, facts=with_gpus(*types))
    for others in (("a100",), (*types, "a100"), (*types, "unheard_of"), ("",)):
        plan_of("gpus=1", *words, facts=with_gpus(*others))
    if "tf32=true" not in words:
        plan_of("gpus=0", *words, facts=with_gpus(*types))


@pytest.mark.parametrize(("words", "said"), [(("gpus=1",), True), (("gpus=4",), False), (("gpus=0",), False)])
def test_a_job_that_sees_more_gpus_than_it_asked_for_is_told(words: tuple[str, ...], said: bool) -> None:
    advice = plan_of(*words, "cluster.flags=['--exclusive']").advice
    assert any("it sees up to 4, not 1" in note for note in advice) == said


@pytest.mark.parametrize("flag", ["gpus-per-node", "gres"])
def test_gres_that_are_no_gpus_are_asked_for_beside_the_gpus(flag: str) -> None:
    text = render(plan_of("gpus=2", f"cluster.gpu_flag={flag}", "cluster.flags=['--gres=lscratch:10']"))
    of_gpus, gres = ("", "gpu:2,lscratch:10") if flag == "gres" else ("#SBATCH --gpus-per-node=2\n", "lscratch:10")
    assert f"{of_gpus}#SBATCH --gres={gres}\n" in text
    assert text.count("--gres=") == 1


def test_advice_is_for_the_dtype_of_the_partitions_gpus() -> None:
    words = ("gpus=1", "amp=o2", "recipe=simplenet", "batch=100")
    for gpu, sizes in (("v100", "8 in float16:"), ("a100", "8 in bfloat16 (fastest: 64):")):
        advice = plan_of(*words, facts=with_gpus(gpu)).advice[0]
        assert advice.startswith(f"tensor cores want multiples of {sizes}")


def test_variables_that_sbatch_would_read_are_named_with_the_keys_that_replace_them() -> None:
    names = ("SBATCH_ACCOUNT", "SBATCH_EXPORT", "SBATCH_MEM_PER_NODE", "SBATCH_PARTITION", "SBATCH_TIMELIMIT")
    facts = dataclasses.replace(LOGIN, slurm=dataclasses.replace(CLUSTER, sbatch_variables=names))
    plan = plan_of("gpus=0", "cluster.account=lab", "cluster.time=5", "cluster.mem=1G", facts=facts)
    assert "SBATCH_PARTITION of this shell has no effect; say cluster.partition=..." in plan.advice


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cluster.partition=gpx",), "cluster.partition=gpx is not one of gpu, short, closed, cpu; did you mean gpu?"),
        (("cluster.partition=closed", "gpus=0"), "partition closed is down"),
        (("gpus=9",), "gpus=9: no node of partition gpu has more than 4"),
        (("gpus=1", "cluster.partition=cpu"), "gpus=1: no node of partition cpu has more than 0"),
        (("gpus=0", "nodes=3"), "nodes=3: partition gpu has 2"),
        (("gpus=0", "cluster.parallel=0"), "cluster.parallel=0 must be at least 1"),
        (("gpus=0", "cluster.cpus=99"), "no node of partition gpu has more than 8"),
        (("gpus=0", "cluster.partition=short", "cluster.time=6"), "over the 5 minutes that partition short allows"),
        (("gpus=0", "cluster.partition=short", "cluster.time=unlimited"), "over the 5 minutes"),
        (("gpus=0", "cluster.mem=900G"), "cluster.mem=900G: no node of partition gpu has more than 128G (command line"),
        (("gpus=0", "cluster.mem=lots"), "cluster.mem=lots is no memory as Slurm writes it: 64G, 64000M"),
        (("gpus=0", "cluster.time=soon"), "not a time as Slurm writes it"),
        (("gpus=0", "cluster.time=1"), "would be asked to save and stop cluster.stop_before=120 s before its end"),
        (("gpus=0", "cluster.time=2:00"), "cluster.time=2:00 is 120 s"),
        (("gpus=0", "cluster.time=3"), "cluster.stop_before=120 s before its end, or up to 60 s earlier"),
        (("cluster.partition=short", "cluster.stop_before=240"), "the time limit of partition short is 300 s"),
        (("visible_gpus=[1]",), "Slurm chooses the devices; say gpus=1"),
        (("gpus=0", "cluster.flags=['-N2']"), "should be a long flag of sbatch"),
        (("gpus=0", "cluster.flags=['--array=1-3']"), "--array is set by the launcher itself"),
        (("gpus=0", "cluster.flags=['--partition=x']"), "say cluster.partition= instead"),
        (("gpus=1", "cluster.flags=['--gres=gpu:2']"), "--gres=gpu:2: say gpus= instead"),
        (("gpus=1", "cluster.flags=['--gpus-per-task=2']"), "say gpus=, which is per node, instead"),
        (("gpus=1", "cluster.flags=['--cpus-per-gpu=2']"), "say cluster.cpus=, which is per node, instead"),
        (("gpus=0", "cluster.account=a b"), "holds a blank"),
    ],
)
def test_resources_that_the_cluster_lacks_are_refused_before_anything_is_queued(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        plan_of(*words)
    assert message in str(error.value)


@pytest.mark.parametrize(("folder", "message"), [("/a%b", "Slurm expands %"), ("/a\\b", "Slurm takes \\ out of paths")])
def test_a_run_root_that_slurm_would_read_otherwise_is_refused(folder: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_of("gpus=0", facts=dataclasses.replace(LOGIN, run_root=folder))
    assert message in str(error.value)


@pytest.mark.parametrize(("folder", "kind"), [("/tmp/runs", "ext4"), ("/scratch", "tmpfs"), ("/dev/shm/x", "tmpfs")])
def test_a_run_root_that_the_nodes_do_not_share_is_refused(folder: str, kind: str) -> None:
    facts = dataclasses.replace(LOGIN, run_root=folder, run_root_filesystem=kind)
    with pytest.raises(UsageError, match="which the nodes do not share"):
        plan_of("gpus=0", facts=facts)
    alone = dataclasses.replace(facts, slurm=dataclasses.replace(CLUSTER, nodes_are_here=True))
    assert plan_of("gpus=0", facts=alone).run_root == folder


def test_gpus_auto_is_what_a_node_of_the_partition_has() -> None:
    for words, gpus, device in (((), 4, "cuda"), (("cluster.partition=cpu",), 0, "cpu"), (("device=cpu",), 0, "cpu")):
        plan = plan_of(*words)
        assert (plan.gpus, plan.settings["device"]) == (gpus, device)


@pytest.mark.parametrize(
    ("words", "cpus", "note"),
    [
        (("gpus=4",), 8, "2 CPUs for each GPU (the share of a GPU in partition gpu); cluster.cpus=N takes another"),
        (("gpus=1", "nodes=2"), 2, "2 CPUs for each GPU"),
        (
            ("gpus=2", "cluster.partition=gpu,short"),
            4,
            "2 CPUs for each GPU (the share of a GPU in partition gpu,short)",
        ),
        (("gpus=4", "cluster.cpus=1"), 1, ""),
        (("gpus=0",), None, ""),
    ],
)
def test_a_job_gets_cpus_for_its_gpus_and_the_plan_says_where_their_number_is_from(
    words: tuple[str, ...], cpus: int | None, note: str
) -> None:
    plan = plan_of(*words)
    assert plan.cluster["cpus"] == cpus
    assert (f"#SBATCH --cpus-per-task={cpus}\n" in render(plan)) == (cpus is not None)
    notes = [sentence for sentence in plan.advice if "for each GPU" in sentence]
    assert [sentence[: len(note)] for sentence in notes] == ([note] if note else [])


def test_a_resume_with_other_gpus_takes_as_many_cpus_for_each() -> None:
    plan = plan_of("gpus=4")
    assert plan_changes.changes(plan, {"gpus": "2"}).cluster["cpus"] == 4
    assert plan_changes.changes(plan, {"gpus": "2", "cluster.cpus": "3"}).cluster["cpus"] == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cluster.flags", "[--array=0-2]", "--array is set by the launcher itself"),
        ("cluster.flags", "[-N2]", "should be a long flag of sbatch"),
        ("cluster.account", "a b", "holds a blank"),
    ],
)
def test_a_resume_is_refused_what_a_new_run_is(key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_changes.changes(plan_of("gpus=0"), {key: value})


def test_cpus_for_gpus_of_an_unknown_partition_are_a_documented_number() -> None:
    nowhere = dataclasses.replace(CLUSTER, partitions=(partition("gpu"),))
    plan = plan_of("gpus=2", facts=dataclasses.replace(LOGIN, slurm=nowhere))
    assert plan.cluster["cpus"] == 8
    assert any(note.startswith("4 CPUs for each GPU (no partition shows its share)") for note in plan.advice)


FULL = (
    *("amp=o2", "gpus=2", "nodes=2", "batch=512", "cluster.partition=gpu", "cluster.account=GOV109199"),
    *("cluster.qos=no", "cluster.constraint=a100&nvlink", "cluster.reservation=maint", "cluster.time=24:00:00"),
    *("cluster.cpus=8", "cluster.mem=90G", "cluster.flags=['--nice=100','--comment=two words \"quoted\"']"),
    *("cluster.setup=['module purge','module load cuda/12.4']", "cluster.wckey=paper"),
    *("cluster.exclude=n[3-5]", "cluster.nodelist=n[1-2]"),
)


TENSORFLOW = ("framework=tensorflow", "amp=o1", "nodes=2", "gpus=2", "amp.dtype=float16", "batch=512")


def test_golden_slurm_scripts() -> None:
    plans = {
        "two-nodes": plan_of(*FULL),
        "one-node": plan_of("gpus=1", "amp=o1"),
        "two-nodes-tensorflow": plan_of(*TENSORFLOW, facts=WITH_TENSORFLOW),
    }
    scripts = {name: render(plan.bind("20260102-030405-calm-fox")) for name, plan in plans.items()}
    golden.assert_text(GOLDEN / "two-nodes.sh", scripts["two-nodes"])
    for name in ("one-node", "two-nodes-tensorflow"):
        golden.check_difference(GOLDEN / f"{name}.sh.diff", scripts[name], scripts["two-nodes"])
    cells = [plan_of("gpus=1", f"seed={seed}").bind(f"20260102-030405-calm-fox-00{seed}") for seed in range(3)]
    scripts["array"] = array(cells, log="/runs/.sweeps/x/%a.log", folders="/runs/the list", parallel=2)
    golden.assert_text(GOLDEN / "array.sh", scripts["array"])
    golden.shellcheck(scripts)


def test_one_process_of_tensorflow_drives_all_gpus_of_its_node_and_the_batch_is_over_all() -> None:
    plan = plan_of(*TENSORFLOW, facts=WITH_TENSORFLOW)
    assert (plan.processes, plan.gpus) == (1, 2)
    with pytest.raises(UsageError, match="batch=6 does not divide by 4 devices"):
        plan_of(*TENSORFLOW[:-1], "batch=6", facts=WITH_TENSORFLOW)


def script_plan_of(*words: str, facts: Facts = LOGIN) -> Plan:
    """The plan of a user's own script."""
    facts = dataclasses.replace(facts, scripts={"train.py": Script(path="/home/mei/train.py", name="script/train.py")})
    return plan_of("recipe=script", "script=train.py", *words, facts=facts)


@pytest.mark.parametrize(
    ("words", "gpus", "note"),
    [
        ((), 1, "the job takes 1 GPU per node of the 4 that nodes of partition gpu have, one for each process of the"),
        (("train.processes=2", "nodes=2"), 2, "the job takes 2 GPUs per node of the 4 that nodes of partition gpu hav"),
        (("device=cpu", "train.processes=2"), 0, ""),
        (("cluster.partition=cpu",), 0, "the job takes no GPU: partition cpu has none; gpus=N asks for some"),
        (("cluster.partition=gpu,short",), 0, "the job takes no GPU: no partition says how many its nodes have"),
        (("cluster.partition=gpu,short", "device=cuda"), 1, "the job takes 1 GPU per node, one for each process"),
        (("gpus=4",), 4, ""),
        (("gpus=0",), 0, ""),
    ],
)
def test_a_script_gets_a_gpu_for_each_process_unless_it_asks_for_others(
    words: tuple[str, ...], gpus: int, note: str
) -> None:
    plan = script_plan_of(*words)
    assert plan.gpus == gpus
    notes = [advice for advice in plan.advice if advice.startswith("the job takes ")]
    assert [advice[: len(note)] for advice in notes] == ([note] if note else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.processes=8",), "each process takes a GPU, and no node of partition gpu has more than 4"),
        (("device=cuda", "cluster.partition=cpu"), "device=cuda, and this job has no GPU"),
    ],
)
def test_gpus_that_no_node_has_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        script_plan_of(*words)


@pytest.mark.parametrize(("words", "folder"), [((), "/home/mei/project"), (("cluster.login=me@box",), "")])
def test_a_script_that_a_login_node_submits_starts_in_a_folder_of_its_own(words: tuple[str, ...], folder: str) -> None:
    plan = script_plan_of("gpus=0", *words)
    assert plan.script and plan.script.workdir == folder


def test_a_script_in_tensorflow_on_several_nodes_gets_tf_config() -> None:
    text = render(script_plan_of("framework=tensorflow", "gpus=0", "nodes=2", facts=WITH_TENSORFLOW))
    assert '-m amp_launcher.tensorflow.node --workers="$LAUNCHER_WORKERS" --number="$SLURM_NODEID"' in text
    assert "\nset_rendezvous\n" in text
    assert "torch.distributed.run" not in text


def test_a_script_is_asked_to_stop_before_its_end_unless_it_has_no_signal() -> None:
    assert "stop_before_end yes" in render(script_plan_of("gpus=0"))
    assert 'stop_before_end ""' in render(script_plan_of("gpus=0", "script.stop_signal=null"))
    assert "stop_before_end yes" in render(plan_of("gpus=0"))


def test_the_header_has_no_environment_no_wckey_unless_asked_and_gres_where_the_cluster_wants_that() -> None:
    lines = header(plan_of("gpus=0"), log="/x")
    assert "#SBATCH --export=NIL" in lines
    assert not any("wckey" in line for line in lines)
    assert "#SBATCH --gres=gpu:2" in header(plan_of("gpus=2", "cluster.gpu_flag=gres"), log="/x")


TYPED = dataclasses.replace(
    CLUSTER,
    partitions=(
        partition(
            "gpu", default=True, gpus_per_node=6, gpu_types=("a100", "v100"), gpus_of_type={"a100": 4, "v100": 2}
        ),
        partition("plain", gpu_types=("",), gpus_of_type={"": 4}),
    ),
)


@pytest.mark.parametrize(("flag", "line"), [("gres", "--gres=gpu:v100:2"), ("gpus-per-node", "--gpus-per-node=v100:2")])
def test_gpus_of_a_type_are_asked_for_by_their_type(flag: str, line: str) -> None:
    plan = plan_of("gpus=v100:2", f"cluster.gpu_flag={flag}", facts=dataclasses.replace(LOGIN, slurm=TYPED))
    assert f"#SBATCH {line}" in header(plan, log="/x")
    assert (plan.gpus, plan.processes, plan.precision and plan.precision.dtype) == (2, 2, "float16")
    assert record.from_json(json.loads(json.dumps(record.to_json(plan)))) == plan
    assert plan_changes.changes(plan, {"gpus": "1"}).gpu_type == "v100"
    with pytest.raises(UsageError, match=r"gpus=a100:1: a run keeps the type of its GPUs; say gpus=1 \(command line\)"):
        plan_changes.changes(plan, {"gpus": "a100:1"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpus=a100:5",), "gpus=a100:5: no node of partition gpu has more than 4 of type a100 (command line)"),
        (("gpus=a1000:1",), "gpus=a1000:1: partition gpu has GPUs of type a100, v100; did you mean a100?"),
        (("gpus=a100:1", "cluster.partition=plain"), "gpus=a100:1: partition plain names no type of GPUs"),
        (("gpus=7",), "gpus=7: no node of partition gpu has more than 6"),
    ],
)
def test_gpus_of_a_type_that_a_partition_has_not_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_of(*words, facts=dataclasses.replace(LOGIN, slurm=TYPED))


def test_cells_of_equal_resources_share_a_shape_and_others_do_not() -> None:
    assert shape(plan_of("gpus=1", "amp=o1")) == shape(plan_of("gpus=1", "amp=o2", "name=other"))
    assert shape(plan_of("gpus=1")) != shape(plan_of("gpus=2"))
    assert shape(plan_of("gpus=0", "cluster.mem=1G")) != shape(plan_of("gpus=0", "cluster.mem=2G"))


def of_job(calls: str, **environment: str) -> str:
    """What the bash of a Slurm job prints."""
    text = f"{bash_files.text('launcher.script', 'slurm.sh')}\n{calls}"
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **environment}
    return subprocess.run(["bash", "-uc", text], env=env, capture_output=True, text=True).stdout.strip()


def test_slurms_programs_are_found_where_they_are_before_the_first_of_them_is_needed(
    programs: Programs, tmp_path: Path
) -> None:
    programs.says(sacct="NODE_FAIL|n1\nRUNNING|n2\n")
    programs.does("scontrol", "echo n1")
    cluster = dataclasses.replace(CLUSTER, environment={"PATH": f"{programs.folder}:/usr/bin:/bin"})
    plan = plan_of("gpus=0", facts=dataclasses.replace(LOGIN, slurm=cluster)).bind("20260102-030405-calm-fox")
    plan = dataclasses.replace(plan, run_root=str(tmp_path))
    folder = Path(plan.run_dir)
    assert folder.is_relative_to(tmp_path)
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "supervise.sh").write_text(supervisor(plan))
    text = render(plan).partition("end_if_unwanted")[0]
    subprocess.run(["bash", "-c", text], env={"SLURM_JOB_ID": "7"}, check=True)  # no PATH, as in Slurm's newer releases
    assert json.loads((folder / "attempts/1/ended.json").read_text())["reason"] == "its node n1 failed"


def test_jobs_with_successive_ids_meet_at_different_ports_of_a_node_that_they_share(programs: Programs) -> None:
    programs.does("scontrol", "case $1 in show) seq 4 ;; *) echo x NodeAddr=127.0.0.1 x ;; esac")
    ports: list[str] = []
    for job in range(2000, 2006):
        calls = 'set_rendezvous; echo "$MASTER_PORT,$LAUNCHER_WORKERS"'
        first, *workers = of_job(calls, SLURM_JOB_ID=str(job), SLURM_JOB_NODELIST="n[1-4]").split(",")
        assert (len(workers), workers[0]) == (4, f"127.0.0.1:{first}")
        ports += workers
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    ("planned", "by"),
    [
        ("8 root priority n1", " by job 8 (root, partition priority)"),
        ("8 root priority n9", ""),
        ("8 root priority (null)", ""),
        ("8 root priority n1\n9 mei gpu n2", ""),
    ],
)
def test_a_preempted_job_names_the_one_that_alone_is_planned_on_its_nodes(
    programs: Programs, planned: str, by: str
) -> None:
    programs.says(f"{planned}\n")
    programs.does("scontrol", "echo $3 | tr , '\\n'")
    assert of_job("sleep() { :; }; preempted", SLURM_JOB_NODELIST="n1,n2") == f"preempted{by}"


@pytest.mark.parametrize(
    ("job", "asked"),
    [("JobId=7 PreemptTime=2026-11-27T20:51:08 x", "preemption"), ("JobId=7 PreemptTime=None x", ""), ("", "")],
)
def test_ranks_that_end_before_their_script_heard_of_the_preemption_are_preempted(
    programs: Programs, job: str, asked: str
) -> None:
    programs.does("scontrol", f"echo '{job}'")
    assert of_job('LAUNCHER_ASKED=; hear_late; echo "$LAUNCHER_ASKED"') == asked


@pytest.mark.parametrize(("asked", "said"), [("preemption", "by Slurm"), ("", "")])
def test_ranks_that_were_preempted_while_they_were_starting_have_stopped(tmp_path: Path, asked: str, said: str) -> None:
    calls = (
        f"{bash_files.text('launcher.script', 'attempt.sh')}\nstart_nodes() {{ :; }}\nLAUNCHER_LOGS={tmp_path}\n"
        f"LAUNCHER_WHO=trainer LAUNCHER_EXIT=143 LAUNCHER_SIGNALLED= LAUNCHER_ASKED={asked}\n"
        "mark_stopped; asked_by_slurm && echo by Slurm"
    )
    assert of_job(calls, LAUNCHER_RUN=str(tmp_path)) == said


@pytest.mark.parametrize(("since", "said"), [("2026-11-27T20:51:08", "asked"), ("None", "waits")])
def test_a_preemption_that_began_before_the_step_that_waits_for_it_is_heard(
    programs: Programs, since: str, said: str
) -> None:
    programs.does("scontrol", f"echo 'JobId=7 PreemptTime={since} x'")
    programs.does("srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    programs.does("sleep", "exit 0")
    calls = "trap 'echo asked; exit' USR2; hear_preemption; wait \"$LAUNCHER_HEARING\"; echo waits"
    assert of_job(calls, SLURMD_NODENAME="n1") == said
