"""A Slurm controller with two nodes of four GPUs each, both nodes on this machine.

Settings are for tests that wait: short scheduler intervals, a short grace before KILL, and ten seconds rather than two
minutes before a requeued job starts again. Where sites differ, the setting is Slurm's default, which is the harder one:
a time limit over the partition's is accepted, by `sbatch --test-only` too, and the job waits for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from tests.testbed import accounting, munge
from tests.testbed.accounting import CONTROLLER_HOST, on_host
from tests.testbed.bed import LOOPBACK, Bed, TestbedError, listens, output_of, run, wait_until, write
from tests.testbed.processes import Process, Server, ensure, everyone, running, stop

CLUSTER = "testbed"
NODES = ("n1", "n2")
GPUS = 8
CPUS = 8
CONTROLLER = "slurmctld"
# Users who may be told apart by account, as `cluster.account` is: both belong to this one.
ACCOUNT = "rehearsals"
PARTITIONS = {
    "gpu": "Default=YES PriorityTier=10 PreemptMode=OFF",
    "short": "MaxTime=5 PriorityTier=10 PreemptMode=OFF",
    # A job here is sent TERM, and five seconds later requeued, when the other partitions want its node.
    "scavenge": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=5",
    # The same after a minute.
    "patient": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=60",
    "priority": "PriorityTier=100 PreemptMode=OFF",
}


def daemon_of(node: str) -> str:
    return f"slurmd-{node}"


SERVERS = (CONTROLLER, *map(daemon_of, NODES))


def configuration(bed: Bed) -> Path:
    return bed.folder / "slurm" / "slurm.conf"


def configuration_without_accounting(bed: Bed) -> Path:
    """The same cluster as a client sees it where the site keeps no accounts: `sacct` refuses, the rest works."""
    return bed.folder / "slurm" / "without-accounting" / "slurm.conf"


def configuration_of_daemons(bed: Bed) -> Path:
    """The same cluster for its daemons, which listen on loopback only. srun listens too, on an address that the nodes
    could not reach where this machine's own name resolves to another, so that it may not be told the same."""
    return accounting.daemons_folder(bed) / "slurm.conf"


def environment(bed: Bed) -> dict[str, str]:
    return {"SLURM_CONF": str(configuration(bed))}


def up(bed: Bed) -> str:
    write_configuration(bed)
    started = [name for name in SERVERS if ensure(bed, server(bed, name))]
    if not (bed.folder / "slurm" / "accounts-made").exists():
        _make_accounts(bed)
    resume_nodes(bed)
    return f"started {', '.join(started)}" if started else "running"


def down(bed: Bed) -> None:
    """Cancel what runs, then end the daemons and every job step that is left."""
    if running(bed, CONTROLLER):
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            output_of(["scancel", "--quiet", f"--state={state}"], environment(bed))
        question = ["squeue", "--noheader", "--format=%i"]
        wait_until(lambda: not output_of(question, environment(bed)), 10)
    for name in reversed(SERVERS):
        stop(bed, name)
    for step in steps(bed):
        step.end(2)


def steps(bed: Bed) -> list[Process]:
    """Our slurmstepd processes: they outlive slurmd by design, and jobs die with them."""
    pids = []
    ours = f"SLURM_CONF={configuration_of_daemons(bed)}".encode()
    for pid in everyone():
        try:
            if not os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("slurmstepd"):  # Debian adds -wlm
                continue
            if ours in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                pids.append(pid)
        except OSError:
            continue
    return [process for process in map(Process.of, pids) if process]


def server(bed: Bed, name: str) -> Server:
    port = bed.ports()[name]
    conf = str(configuration_of_daemons(bed))
    if name == CONTROLLER:
        return Server(
            name=name,
            argv=on_host(CONTROLLER_HOST, "slurmctld", "-D", "-f", conf),
            environment={"SLURM_CONF": conf},
            configuration=slurm_conf(bed, True, "daemons"),
            ready=lambda: output_of(["scontrol", "ping"], environment(bed)) is not None,
        )
    node = name.removeprefix("slurmd-")
    return Server(
        name=name,
        argv=on_host(node, "slurmd", "-D", "-N", node, "-f", conf),
        environment={"SLURM_CONF": conf},
        configuration=slurm_conf(bed, True, "daemons") + gres_conf(bed),
        ready=lambda: listens(port),
    )


def write_configuration(bed: Bed) -> None:
    for node in NODES:
        for device in devices(bed, node):
            if not device.exists():
                _make_device(device)
    files = {
        configuration(bed): slurm_conf(bed, True, "clients"),
        configuration_without_accounting(bed): slurm_conf(bed, False, "clients"),
        configuration_of_daemons(bed): slurm_conf(bed, True, "daemons"),
    }
    for path, text in files.items():
        write(path, text)
        write(path.with_name("gres.conf"), gres_conf(bed))


def slurm_conf(bed: Bed, with_accounting: bool, reader: Literal["daemons", "clients"]) -> str:
    ports = bed.ports()
    folder = bed.part("slurm")
    lines: dict[str, object] = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{CONTROLLER_HOST}({LOOPBACK})",
        "SlurmctldPort": ports[CONTROLLER],
        "SlurmUser": "root",
        "MailProg": "/bin/true",
        "AuthType": "auth/munge",
        # cred_expire is also how long a requeued job waits before it may start again; its default is 120 s. Tests wait
        # with it: a job that is told to start while its last attempt still ends fails, or has its node drained.
        "AuthInfo": f"socket={munge.socket_path(bed)},cred_expire=10",
        "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny" if reader == "daemons" else "",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": 4000,
        "GresTypes": "gpu",
        # Memory is watched by polling: without cgroups a job over its limit is killed, and its standard error says so,
        # but its state is FAILED or CANCELLED rather than OUT_OF_MEMORY.
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=2",
        "JobAcctGatherParams": "UsePss,OverMemoryKill",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": 1,
        "MaxArraySize": 1001,
        "MaxJobCount": 20000,
        "MinJobAge": 30,
        "KillWait": 5,
        "SlurmdTimeout": 30,
        "ReturnToService": 2,
        "SlurmdParameters": "config_overrides",
        "DebugFlags": "NO_CONF_HASH",  # clients may hold another configuration than the daemons
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool-%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd-%n.pid",
        "SlurmctldLogFile": bed.log("slurmctld-own"),
        "SlurmdLogFile": bed.part("logs") / "slurmd-%n-own.log",
    }
    if with_accounting:
        lines["AccountingStorageType"] = "accounting_storage/slurmdbd"
        lines["AccountingStorageHost"] = LOOPBACK
        lines["AccountingStoragePort"] = ports[accounting.DAEMON]
        lines["AccountingStoragePass"] = munge.socket_path(bed)  # with munge, that is what this means
        lines["AccountingStorageTRES"] = "gres/gpu"
    else:
        lines["AccountingStorageType"] = "accounting_storage/none"
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if value != "")
    for node in NODES:
        text += f"NodeName={node} NodeHostname={node} NodeAddr={LOOPBACK} Port={ports[daemon_of(node)]} "
        # More memory than there is, so that only a limit that a job asked for ever ends one.
        text += f"CPUs={CPUS} RealMemory=64000 Gres=gpu:{GPUS} State=UNKNOWN\n"
    for name, options in PARTITIONS.items():
        text += f"PartitionName={name} Nodes=ALL State=UP {options}\n"
    return text


def gres_conf(bed: Bed) -> str:
    lines = ["AutoDetect=off"]
    for node in NODES:
        lines += [f"NodeName={node} Name=gpu File={device}" for device in devices(bed, node)]
    return "\n".join(lines) + "\n"


def devices(bed: Bed, node: str) -> list[Path]:
    """A node's GPU device files. Slurm takes the digit at a name's end for the GPU's number."""
    return [bed.part("slurm") / f"devices-{node}" / f"nvidia{index}" for index in range(GPUS)]


def _make_device(path: Path) -> None:
    """A character device that swallows what is written, or where none may be made, a link to one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.stat("/dev/null").st_rdev)
        path.chmod(0o666)
    except PermissionError:
        path.symlink_to("/dev/null")


def _make_accounts(bed: Bed) -> None:
    log = bed.log("sacctmgr")
    if CLUSTER not in (output_of(["sacctmgr", "-n", "list", "cluster", "format=Cluster"], environment(bed)) or ""):
        run(["sacctmgr", "-i", "add", "cluster", CLUSTER], log=log, env=environment(bed))
    for words in (["account", ACCOUNT], ["user", "root", "rehearsal", f"account={ACCOUNT}"]):
        # It ends with 1 both for "is already there" and for failures; what was made is what counts.
        output_of(["sacctmgr", "-i", "add", *words], environment(bed))
    users = output_of(["sacctmgr", "-n", "list", "assoc", "format=User"], environment(bed)) or ""
    if "rehearsal" not in users:
        raise TestbedError(f"sacctmgr did not make the account {ACCOUNT}: see {bed.log(accounting.DAEMON)}")
    (bed.folder / "slurm" / "accounts-made").touch()


def unfit(bed: Bed) -> str:
    """Which nodes take no jobs and why, in Slurm's words; empty where all do."""
    return output_of(["sinfo", "--noheader", "--list-reasons", "--format=%N %T: %E"], environment(bed)) or ""


def resume_nodes(bed: Bed) -> None:
    """Have both nodes take jobs. They come up drained or down after a first start or a kill, and unknown for a few
    seconds after the controller's restart."""

    def fit() -> bool:
        text = output_of(["sinfo", "--noheader", "--Node", "--format=%N %T"], environment(bed)) or ""
        # sinfo adds a character: `*` doesn't answer, `-` planned for a job, and more.
        states = dict(line.split() for line in text.splitlines())
        for node, state in states.items():
            if state.startswith(("down", "drain", "fail")):
                output_of(["scontrol", "update", f"nodename={node}", "state=resume"], environment(bed))
        takes_jobs = ("idle", "mixed", "allocated", "completing", "planned")
        return all(states.get(node, "").rstrip("-").startswith(takes_jobs) for node in NODES) and "*" not in text

    if not wait_until(fit, 60, every=0.2):
        dead = [name for name in SERVERS if not running(bed, name)]
        states = (output_of(["sinfo", "--noheader", "--Node", "--format=%N %T"], environment(bed)) or "").split("\n")
        raise TestbedError(
            f"the nodes do not take jobs: {', '.join(filter(None, states)) or 'sinfo fails'}"
            f"{'; dead: ' + ', '.join(dead) if dead else ''}\n{unfit(bed)}"
        )
