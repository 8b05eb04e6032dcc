from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import key_checks
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.spec import make
from launcher.config.sweep import cells
from launcher.errors import UsageError
from recipes.precision.levels import PRESETS
from tests.launcher.hosts import spec_of

SCRIPT = ("recipe=script", "script=train.py")
REWRITE = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("amp=o0", "amp.dtype=float16"), "amp.dtype=float16 with amp=o0"),
        (("amp.dtype=float8",), "amp.dtype=float8 is not one of auto, float16, bfloat16"),
        (("amp.allow=[conv2d]", "amp.deny=[conv2d]"), "conv2d is on both amp.allow and amp.deny"),
        (("amp=o1", "amp.master_weights=true"), "only o2 has the choice"),
        (("amp=o2", "amp.rounding=stochastic"), "takes the place of the float32 masters of amp=o2; say amp=o3"),
        (("amp=fp16-true", "amp.rounding=stochastic"), "amp.rounding=stochastic needs bfloat16"),
        (("amp=o3", "amp.rounding=random"), "amp.rounding=random is not one of nearest, stochastic"),
        (("amp=o0", "loss_scale=dynamic"), "float32 gradients need no scale"),
        (("batch=7", "accumulate=2"), "batch=7 does not divide by 1 device x accumulate=2; say batch=6 or 8"),
        (("telemetry.every=-1",), "telemetry.every=-1 must be 0 to 86400 seconds; 0 records none"),
        (("telemetry.every=999999999",), "must be 0 to 86400 seconds"),
        (("batch=-1",), "batch=-1 must be at least 1"),
        (("batch=x",), "batch=x should be a whole number (command line)"),
        (("batch=1.5",), "batch=1.5 should be a whole number"),
        (("epochs=2", "steps=3"), "epochs=2 and steps=3: say one of them"),
        (("train.lrr=3",), "did you mean train.lr?"),
        (("train.lr=fast",), "train.lr=fast should be a number"),
        (("loss_scale.init=0",), "loss_scale.init=0.0 must be above zero"),
        (("framework=paddle", "recipe=gan"), "recipe gan is available in torch, tensorflow"),
        (("env.CUDA_VISIBLE_DEVICES=1",), "say visible_gpus=[...]"),
        (("env.LAUNCHER_QUEUE=short",), "env.LAUNCHER_QUEUE: LAUNCHER_QUEUE is set by the launcher itself"),
        (("recipe=gpt", "amp=fp8", "env.NVTE_BACKWARD_OVERRIDE=high_precision"), "leave the variable out"),
        (("env.A-B=1",), "is not a name for an environment variable"),
        (("env.A=1", "secrets.A=/x"), "A is given both as env.A and as secrets.A"),
        (("gpus=2", "visible_gpus=[1]"), "name different numbers of GPUs"),
        (("visible_gpus=[1,1]",), "must be different indices"),
        (("nodes=2",), "nodes=2 needs cluster=slurm"),
        (
            ("framework=paddle", "cluster=slurm", "nodes=2"),
            "nodes=2: framework=paddle runs on one node here; say nodes=1 (command line)",
        ),
        (("cluster.partition=gpu",), "cluster.partition belongs to cluster=slurm, and this is cluster=local"),
        (("wait=true", "detach=true"), "contradict each other"),
        (("name=a/b",), "name=a/b should be up to 60 letters"),
        (("run_root=",), "run_root= is empty"),
        (("checkpoint.keep=0",), "checkpoint.keep=0 must be at least 1"),
        (("proof.share=0",), "proof.share=0 must be above 0 and at most 1"),
        (("cluster.stop_before=0",), "cluster.stop_before=0 must be at least 1 (command line)"),
        (
            ("cluster=slurm", "cluster.stop_before=70000"),
            "cluster.stop_before=70000 must be at most 65535 (command line)",
        ),
        (("cluster=slurm", "cluster.cpus=0"), "cluster.cpus=0 must be at least 1 (command line)"),
        (("cluster=slurm", "cluster.max_requeues=-1"), "cluster.max_requeues=-1 must be at least 0"),
        (("cluster=ssh", "cluster.connect_timeout=0"), "cluster.connect_timeout=0 must be at least 1"),
        (("profile.start=0",), "profile.start=0 must be at least 1"),
        (("steps_per_execution=0",), "steps_per_execution=0 must be at least 1"),
        (("script.stop_signal=INT",), "script.stop_signal=INT is for recipe=script, and this is recipe=mnist"),
        (
            ("script.resume_arguments=[-r]",),
            "script.resume_arguments=[-r] is for recipe=script, and this is recipe=mnist",
        ),
        ((*SCRIPT, "script.stop_signal=USR1"), "script.stop_signal=USR1: NCCL takes USR1 for itself; say USR2"),
        (
            (*SCRIPT, "script.stop_signal=KILL"),
            "script.stop_signal=KILL: no script can handle KILL; say one of TERM, INT",
        ),
        (
            (*SCRIPT, "script.stop_signal=TREM"),
            "TREM is not one of TERM, INT, HUP, QUIT, USR2, null; did you mean TERM?",
        ),
        ((*SCRIPT, "script.stop_signal=SIGTERM"), "did you mean TERM?"),
        (
            (*SCRIPT, "script.stop_signal=INT", "train.bare=true", "require_proof=false"),
            "script.stop_signal=INT: with train.bare=true run.sh sends TERM",
        ),
        (("parallel=zero",), "parallel=zero is not one of ddp, fsdp"),
        (
            ("framework=tensorflow", "parallel=fsdp"),
            "parallel=fsdp is torch's, and this is framework=tensorflow; leave it out",
        ),
        (("framework=paddle", "recipe=simplenet", "parallel=ddp"), "parallel=ddp is torch's"),
        (("recipe=resnet50", "parallel=fsdp"), "recipe=resnet50 can't be sharded: its convolutions have channels_last"),
        (("recipe=gan", "data=digits", "parallel=fsdp"), "fully_shard doesn't follow; say parallel=ddp (command line)"),
        (("amp=o3", "amp.rounding=stochastic", "parallel=fsdp"), "amp.rounding=stochastic with parallel=fsdp"),
        ((*SCRIPT, "parallel=fsdp"), "parallel=fsdp: recipe=script decides that by itself"),
        (("proof.share=85",), "proof.share=85 must be above 0 and at most 1"),
        (
            ("framework=tensorflow", "amp=o1", f"env.{REWRITE}_DENYLIST_ADD=Conv2D"),
            "amp decides which operations the graph rewrite converts; say amp.allow, amp.deny, amp.infer or amp.clear=",
        ),
        (("framework=tensorflow", f"env.{REWRITE}_LEVEL=UNSAFE_FORCE_ALL"), "amp decides which operations"),
    ],
)
def test_a_wrong_request_is_refused_in_words(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError) as error:
        spec_of(*words)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ("framework=torch", f"env.{REWRITE}_DENYLIST_ADD=Conv2D"),
        ("framework=tensorflow", f"env.{REWRITE}_LOG_PATH=/tmp/log"),
        (*SCRIPT, "framework=tensorflow", "train.precision=script", f"env.{REWRITE}_LEVEL=2"),
    ],
    ids=["another framework", "a variable that converts nothing", "a script that rewrites by itself"],
)
def test_other_variables_of_the_graph_rewrite_are_passed_on(words: tuple[str, ...]) -> None:
    spec_of(*words)


def test_a_recipe_whose_file_is_not_written_yet_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_checks, "NAMES", ("mnist", "fresh"))
    with pytest.raises(UsageError, match=r"recipe=fresh has no file conf/recipe/fresh\.yaml; `make conf` writes it"):
        spec_of("recipe=fresh")


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("kind: slurm\ntime: 1:30:00\n", 'YAML reads 1:30:00 as 5400, a whole number: quote it, as "1:30:00" ('),
        ("kind: slurm\nqos: no\n", 'cluster.qos is text, and YAML reads no as false: quote it, as "no" ('),
        ("kind: slurm\naccount: 1.10\n", 'YAML reads 1.10 as 1.1, a number: quote it, as "1.10" ('),
        ("kind: slurm\npartitionn: x\n", "unknown key cluster.partitionn; did you mean cluster.partition?"),
        ("kind: sluurm\n", "cluster.kind=sluurm is not one of local, ssh, slurm; did you mean slurm?"),
    ],
)
def test_a_site_file_with_a_number_where_text_is_meant_is_refused(tmp_path: Path, yaml: str, says: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "site.yaml").write_text(yaml)
    (cell,) = cells(Composer(config_dirs=[tmp_path]), [parse("cluster=site")])
    with pytest.raises(UsageError) as error:
        make(cell)
    assert says in str(error.value)
    assert str(error.value).endswith(f" ({tmp_path}/cluster/site.yaml:{1 if 'sluurm' in yaml else 2})")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_choice_and_its_values_can_be_changed(preset: str) -> None:
    level = "o2" if PRESETS[preset].mode in ("dynamic", "static") else "o1"
    spec = spec_of(f"loss_scale={preset}", f"amp={level}")
    assert spec.training.loss_scale == PRESETS[preset]
    assert spec_of(f"loss_scale={preset}", "loss_scale.growth=3.0").training.loss_scale.growth == 3.0


def test_the_recipe_fills_in_what_was_not_named() -> None:
    training = spec_of().training
    assert (training.batch, training.data.name, training.steps) == (128, "digits", None)
    assert training.epochs is not None
    assert spec_of("steps=5").training.epochs is None


def test_a_level_may_be_named_as_a_key_too() -> None:
    spec = spec_of("amp.level=o2")
    assert spec.training.amp.level == "o2"
    assert "amp=o2" in spec.words


def test_auto_is_null_where_the_launcher_decides() -> None:
    spec = spec_of("gpus=auto", "tf32=auto", "train.clip=auto")
    assert (spec.launch.gpus, spec.training.tf32, spec.training.train.clip) == (None, None, None)


def test_a_group_that_is_given_whole_reaches_the_trainer_key_by_key() -> None:
    assert {"checkpoint.every=5", "checkpoint.keep=2"} <= set(spec_of("checkpoint={every:5,keep:2}").words)
