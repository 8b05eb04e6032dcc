"""Requests that no host could carry out: one line that says what is wrong, exit code 2, and nothing left behind."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from launcher.config import key_checks
from tests.launcher.config.conftest import Refusal

SCRIPT = "recipe=script script=train.py"
BARE = f"{SCRIPT} train.bare=true require_proof=false amp=o0"
REWRITE = "env.TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"

READING = {
    "amp=o2 simplenet": "simplenet needs its key: recipe=simplenet",
    "plain": "plain is not a file or key=value",
    "batch=1 plain": "'plain' is neither a verb nor key=value",
    "amp.deny": "amp.deny is a key and needs a value: amp.deny=...",
    "simplenet amp=o2": "simplenet needs its key: recipe=simplenet",
    "mnist": "mnist needs its key: recipe=mnist or data=mnist",
    "amp o2": "amp is a key and needs a value: amp=...",
    "batch=[1": "batch=[1: a bracket is not closed",
    "batch=x": "batch=x should be a whole number (command line)",
    "batch=1.5": "batch=1.5 should be a whole number",
    "train.lr=fast": "train.lr=fast should be a number",
    "checkpoint=5": "checkpoint=5 should be a group of keys: every, keep, stop_every",
    "checkpoint='{evry: 5}'": "unknown key checkpoint.evry; did you mean checkpoint.every?",
    "checkpoint={every}": "checkpoint: every should be NAME: value",
    "cluster.setup={a:b}": "should be a list",
    "mounts='[a&b:/c'": "a bracket is not closed; write [a,b]",
    "cluster.flags=[a,,b]": "the list has an empty item",
    "cluster.flags='[a] b'": "nothing may follow the closing ]",
    "image=a,": "image=a,: the list has an empty item",
    "env.A=choice()": "env.A=choice() lists no value",
    "name=a\x1bb": "control character",
    "env.A='a\nb'": "control character '\\n'",
    f"seed={'9' * 5000}": "seed has 5000 digits, more than can be read",
    "train.lr='${x}'": "train.lr=${x}: interpolations are for configuration files; write the value (command line)",
    "recipe=gan train.channels='[${name},8]'": "train.channels=[${name},8]: interpolations are for configuration files",
    "recipe=gan train='{channels: [${batch}]}'": "train={channels: [${batch}]}: interpolations are for",
    "seed='1,${x}'": "seed=${x}: interpolations are for configuration files; write",
    "hydra.run.dir=x": "have no effect here",
}
SWEEPS = {
    "seed=range(0,1,0)": "has a step of 0",
    "train.lr=range(0,1,0)": "has a step of 0",
    "seed=range(0,10,1e-999999)": "has a step of 0",
    "seed=range(10,0,-1e-9999999)": "has a step of 0",
    "seed=range(0,0)": "seed=range(0,0) lists no value",
    "seed=range(0,1e99)": "say range(start,stop,step) in numbers up to",
    "seed=range(1e9999999,2)": "in numbers up to",
    "seed=range(0,-1e99999999999999999999)": "in numbers up to",
    "seed=range(a)": "seed=range(a) can't be read",
    "seed=rang(0,3)": "choice(a,b) or range(start,stop,step)",
    "batch=interval(1,2)": "an interval is searched, by `run` with search=optuna",
    "batch=glob(*)": "glob() lists no values",
    "seed=range(0,1000000000)": "a sweep over seed has more than 10,000 cells",
    "batch=1,1": "has the cell batch=1 twice",
    "~seed=[1],[2]": "names several values",
    "~amp=o1,o2": "names several values",
    "~batch": "~batch has nothing to take back: no file sets it",
}
NAMES = {
    "amp=o9": "amp=o9 is not one of o0, o1, o2, o3, bf16-mixed, bf16-true, fp16-mixed",
    "amp=null": "amp=null is not one of",
    "~amp": "~amp: amp can't be left out; say one of o0, o1, o2, o3",
    "amp=[o1]": "amp=[o1] is not one of",
    "amp=O2": "; did you mean o2?",
    "amp==o2": "; did you mean o2?",
    "amp=bf16": "amp=bf16 is not a mode; say amp=bf16-mixed, or amp=bf16-true",
    "amp=16-mixed": "say amp=fp16-mixed (",
    "amp=off": "say amp=o0 (",
    "amp.dtype=fp16": "did you mean float16?",
    "amp.dtype=float8": "amp.dtype=float8 is not one of auto, float16, bfloat16",
    "loss_scale=128": "loss_scale=128 is not a rule; say loss_scale=static loss_scale.init=128",
    "recipe=gpt data=mnist": "data=mnist is not one of",
    "recipe=mnst": "did you mean mnist?",
    "device=gpu": "did you mean cuda?",
    "profile=nsyss": "did you mean nsys",
    "parallel=zero": "parallel=zero is not one of ddp, fsdp",
    "env_from=all": "env_from=all is not one of none, shell",
    "bach=3": "unknown key bach; did you mean batch?",
    "train.lrr=3": "did you mean train.lr?",
    "time=3": "did you mean cluster.time?",
    "lr=0.1": "did you mean train.lr?",
    "dtype=float16": "did you mean amp.dtype?",
    "every=5": "did you mean checkpoint.every or telemetry.every?",
    "cluster.partion=x": "did you mean cluster.partition?",
    "precision=bf16-mixed": "precision is not a key; say amp=bf16-mixed",
    "cluster=ssh cluster.user=me": "cluster.user is not a key; say cluster.host=me@host",
    "cluster.partition=gpu": "cluster.partition belongs to cluster=slurm, and this is cluster=local",
}
VALUES = {
    "batch=0": "batch=0 must be at least 1 (command line)",
    "recipe=gan data=digits batch=-5": "batch=-5 must be at least 1",
    "batch=7 accumulate=2": "batch=7 does not divide by 1 device x accumulate=2; say batch=6 or 8",
    "telemetry.every=-1": "telemetry.every=-1 must be at least 0 (command line)",
    "telemetry.every=999999999": "telemetry.every=999999999 must be at most 86400 (command line)",
    "epochs=2 steps=3": "epochs=2 and steps=3: say one of them",
    "loss_scale.init=0": "loss_scale.init=0.0 must be above zero",
    "loss_scale.growth=0.5": "loss_scale.growth=0.5 must be above 1",
    "checkpoint.keep=0": "checkpoint.keep=0 must be at least 1",
    "proof.share=0": "proof.share=0 must be above 0 and at most 1",
    "proof.share=85": "proof.share=85 must be above 0 and at most 1",
    "profile.start=0": "profile.start=0 must be at least 1",
    "profile.start=3": "profile.start=3 belongs to profile=framework or nsys or ncu or dlprof, and this",
    "profile=dlprof profile.steps=3": "profile.steps=3 belongs to profile=framework or nsys or ncu, and this is",
    "profile=nsys profile.reports=[detail]": "profile.reports=[detail] belongs to profile=dlprof, and this is",
    "profile=dlprof profile.reports=[details]": "profile.reports[0]=details is not one of all, summary, detail",
    "profile=nsys profile.key_node=X": "profile.key_node=X belongs to profile=dlprof, and this is profile=nsys",
    "image=x": "image= needs a container: say container=docker, podman, apptainer or pyxis, or leave image out",
    "image.is=ngc-pytorch": "image.is= needs a container",
    "mounts=[/a:/b]": "mounts= needs a container",
    "container.shm=64": "container.shm= needs a container: say container=docker",
    "container.network=none": "container.network= needs a container",
    "steps_per_execution=0": "steps_per_execution=0 must be at least 1",
    "cluster.time=soon": "cluster.time=soon is not a time as Slurm writes it",
    "cluster.time=1 cluster.stop_before=60": "cluster.time=1 is 60 s, and the run would be asked to save and stop",
    "cluster.stop_before=0": "cluster.stop_before=0 must be at least 1 (command line)",
    "cluster=slurm cluster.stop_before=70000": "cluster.stop_before=70000 must be at most 65535 (command line)",
    "cluster=slurm cluster.cpus=0": "cluster.cpus=0 must be at least 1 (command line)",
    "cluster=slurm cluster.max_requeues=-1": "cluster.max_requeues=-1 must be at least 0",
    "cluster=ssh cluster.connect_timeout=0": "cluster.connect_timeout=0 must be at least 1",
    "name=a/b": "name=a/b should be up to 60 letters",
    "name=--now": "the first one a letter, a digit or '_'",
    "run_root=": "run_root= is empty",
    "wait=true detach=true": "contradict each other",
}
PRECISION = {
    "amp=o0 amp.dtype=float16": "amp.dtype=float16 with amp=o0",
    "amp.allow=[conv2d] amp.deny=[conv2d]": "conv2d is on both amp.allow and amp.deny",
    "amp=o1 amp.infer=[Relu]": "amp.infer=[Relu] is a list of TensorFlow's graph rewrite",
    "amp=o1 amp.master_weights=true": "only o2 has the choice",
    "amp=o0 loss_scale=dynamic": "float32 gradients need no scale",
    "amp=bf16-mixed amp.dtype=float16": "say amp=o1 amp.dtype=float16",
    "amp=fp16-true amp.level=o2": "amp.level=o2 with amp=fp16-true, which is o3; say amp=o2",
    "amp=fp32 tf32=true": "tf32=true with amp=fp32; say amp=tf32",
    "amp=tf32 tf32=false": "tf32=false with amp=tf32; say amp=fp32",
    "amp=o1 amp.preset=bf16-true": "amp.level=o1 with amp=bf16-true",
    "amp=fp8 amp.gemm=fp8-rowwise": "amp.gemm=fp8-rowwise with amp=fp8, which is fp8-tensorwise; say amp=o2 "
    "amp.dtype=bfloat16 amp.gemm=fp8-rowwise",
    "recipe=gpt amp=o2 amp.gemm=fp8-delayed": "so that nothing proves it; say amp=fp8",
    f"framework=tensorflow amp=o1 {REWRITE}_DENYLIST_ADD=Conv2D": "amp decides which operations the graph rewrite "
    "converts; say amp.allow, amp.deny, amp.infer or amp.clear=",
    f"framework=tensorflow {REWRITE}_LEVEL=UNSAFE_FORCE_ALL": "amp decides which operations",
}
PLACES = {
    "framework=paddle recipe=gan": "recipe gan is available in torch, tensorflow",
    "framework=tensorflow parallel=fsdp": "parallel=fsdp is torch's, and this is framework=tensorflow; leave it out",
    "framework=paddle recipe=simplenet parallel=ddp": "parallel=ddp is torch's",
    "recipe=resnet50 parallel=fsdp": "recipe=resnet50 can't be sharded: its convolutions have channels_last",
    "recipe=gan data=digits parallel=fsdp": "fully_shard doesn't follow; say parallel=ddp (command line)",
    "nodes=2": "nodes=2 needs cluster=slurm",
    "framework=paddle cluster=slurm nodes=2": "nodes=2: framework=paddle runs on one node here; say nodes=1 (command",
    "gpus=2 visible_gpus=[1]": "name different numbers of GPUs",
    "visible_gpus=[1,1]": "must be different indices",
    "cluster=slurm visible_gpus=[0,1]": "Slurm chooses the devices; say gpus=2",
    "cluster=slurm wait_gpus=true": "wait_gpus=true with cluster=slurm: Slurm queues jobs by itself",
    "wait_gpus=true gpus=0": "wait_gpus=true with gpus=0: there is no GPU to wait for; leave it out",
    "wait_gpus=true device=cpu": "wait_gpus=true with device=cpu: there is no GPU to wait for; leave it out",
    "env.CUDA_VISIBLE_DEVICES=1": "say visible_gpus=[...]",
    "env.PYTHONPATH=/x": "leave it out; a script's modules are found as by",
    "env.LAUNCHER_QUEUE=short": "env.LAUNCHER_QUEUE: LAUNCHER_QUEUE is set by the launcher itself",
    "env.A-B=1": "is not a name for an environment variable",
    "env.A=1 secrets.A=/x": "A is given both as env.A and as secrets.A",
    "env.HF_TOKEN=hush": "say secrets.HF_TOKEN=FILE, or secrets.HF_TOKEN",
    "env.WANDB_API_KEY": "say secrets.WANDB_API_KEY=FILE",
    "secrets.A=": "secrets.A= names no file; say secrets.A=FILE, or secrets.A for this",
}
SCRIPTS = {
    "recipe=script": "recipe=script needs script=FILE",
    "script=train.py": "script=train.py is for a script, and this is recipe=mnist; name the script as the first word",
    "workdir=/tmp": "workdir=/tmp is for a script",
    "-- --lr 1": "-- --lr 1 is for a script",
    "script.stop_signal=INT": "script.stop_signal=INT is for a script, and this is recipe=mnist",
    "script.resume_arguments=[-r]": "script.resume_arguments=[-r] is for a script, and this is recipe=mnist",
    f"{SCRIPT} train.rate=ips:": "train.rate=ips:: the steps of a script are counted; say train.bare=true as well",
    f"{SCRIPT} script.stop_signal=SIGTERM": "SIGTERM is not one of TERM, INT, HUP, QUIT, USR2; did you mean TERM?",
    f"{BARE} script.stop_signal=INT": "script.stop_signal=INT: with train.bare=true run.sh sends TERM",
    f"{SCRIPT} parallel=fsdp": "parallel=fsdp: recipe=script decides that by itself",
    f"{SCRIPT} batch=64": "batch=64: recipe=script decides that by itself",
    f"{SCRIPT} data=mnist": "data.name=mnist: recipe=script decides that by itself",
    **{
        f"{SCRIPT} {word}": f"{word}: recipe=script decides that by itself"
        for word in ("epochs=2", "steps=9", "seed=7", "accumulate=2")
    },
    f"{SCRIPT} checkpoint.every=5": "checkpoint.every=5: recipe=script decides that by itself; its arguments go after "
    "--, as in `-- --batch-size 64` (command line)",
    f"{SCRIPT} train.bare=true require_proof=true": "leave out require_proof=true",
    f"{SCRIPT} train.proceses=2": "did you mean train.processes?",
    f"{SCRIPT} framework=paddle train.processes=2": "torchrun starts scripts in torch, and this one is in paddle",
    f"{BARE} framework=tensorflow nodes=2 cluster=slurm": "nodes=2: with train.bare=true nothing tells TensorFlow's",
    f"{SCRIPT} lr=0.1": "arguments of the script go after --: -- --lr 0.1",
    f"{SCRIPT} time=2:00": "did you mean cluster.time? arguments of the script go after --: -- --time 2:00",
    f"{SCRIPT} --lr 3": "arguments of the script go after --",
    f"{SCRIPT} -- 'a\nb'": "an argument after --",
    f"{SCRIPT} -- \udcff": "an argument after --",
    "recipe=script script=image:/a.py": "is in an image, and there is no container",
    "recipe=script script=image:/a.py container=docker image=x script.inputs=[/x]": "script.inputs=[/x]: image:/a.py "
    "starts in a folder of the image",
    "recipe=script script=a.py -- ??? '${x}'": "there is no such file",
}
HOMELESS = (
    *("run_root=~nouser/x", "data=mnist data.dir=~nouser/x", "secrets.A=~nouser/x", "python=~nouser/python"),
    *("recipe=script script=~nouser/a.py", "container=docker image=~nouser/a.sif", "--config-dir ~nouser/x"),
    *("container=docker image=x mounts=[~nouser/a:/b]", "container=docker image=x container.cache=~nouser/a"),
    "--facts ~nouser/x",
)
FIRST_WORDS = {
    "lst": "lst is not a verb (run, cmd, up, down, chain, plan, compare, ls,",
    "lsz": "did you mean ls?",
    "train": "say `run`; did you mean train.py?",
    "trian": "did you mean train.py?",
    "sub": "sub is a folder: name a script in it, as sub/train.py",
    "sub.train": "a module is named by its file, sub/train.py",
    "amp=o2 plan": "a verb is the first word: python -m launcher plan",
    "simplenet amp=o2": "simplenet needs its key: recipe=simplenet",
    "mnist": "mnist needs its key: recipe=mnist or data=mnist",
    "amp o2": "amp is a key and needs a value: amp=...",
    "stop wise-oasis": "stop is not a verb; say `cancel wise-oasis`",
    "kill x": "say `cancel x`",
    "status": "status is not a verb; say `ls`",
    "--amp=o2": "a key has no dashes: amp=o2",
    "train.py --partition gpu": "no dashes: cluster.partition=...; arguments of the script go after --",
    "amp=o2 --dry-run": "`plan` shows what would be started",
    "python train.py --lr 3": "python is not needed: python -m launcher train.py -- ARGUMENTS",
    "plan python -m sub.train": "PYTHONPATH=. python -m launcher sub/train.py -- ARGUMENTS",
    "run /usr/bin/torchrun --nproc_per_node=2 train.py": "gpus=N train.processes=N is N processes",
    "plan cmd -- ./a.sh": "say one of the two (`cmd --plan` shows what it would do)",
    "plan pip install": f"not a file or key=value; a program is named by its file, {Path(sys.executable).parent}",
}
"""Command lines whose first word, behind a verb or without one, is not one."""
REFUSED = {
    **{**READING, **SWEEPS, **NAMES, **VALUES, **PRECISION, **PLACES, **SCRIPTS},
    **dict.fromkeys(HOMELESS, "~nouser/"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_request_is_refused_in_one_line(
    words: str, refusal: Refusal, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    message = refusal("plan", *shlex.split(words))
    assert "hush" not in message
    assert REFUSED[words] in message
    assert words not in HOMELESS or "there is no home folder" in message


@pytest.mark.parametrize("line", FIRST_WORDS)
def test_a_line_that_begins_with_no_verb_is_answered_with_what_was_meant(
    line: str, refusal: Refusal, project: Path
) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "train.py").touch()
    assert FIRST_WORDS[line] in refusal(*shlex.split(line))
    assert os.listdir(project.parent) == ["project"]


def test_a_recipe_whose_file_is_not_written_yet_is_refused_with_the_command(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_checks, "NAMES", ("mnist", "fresh"))
    assert "recipe=fresh has no file conf/recipe/fresh.yaml; `make conf` writes it" in refusal("plan", "recipe=fresh")
