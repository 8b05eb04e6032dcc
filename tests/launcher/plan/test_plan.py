from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from amp_launcher import arguments
from amp_launcher.typed import plain
from launcher.errors import UsageError
from launcher.plan.model import Decided, Plan
from launcher.plan.plan_summary import summary
from launcher.plan.record import from_json, to_json
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts, Script
from launcher.script.render import render
from launcher.script.trainer_command import command
from tests import golden
from tests.launcher.hosts import KEPLER, LAPTOP, TWO_A100, TWO_V100, gpu, spec_of

V100_AND_A100 = dataclasses.replace(LAPTOP, gpus=(gpu(0, "7.0"), gpu(1, "8.0", "NVIDIA A100-SXM4-80GB")))

GOLDEN = Path(__file__).parents[1] / "golden"
WITH_SCRIPT = dataclasses.replace(
    LAPTOP,
    scripts={"train.py": Script(path="/home/mei/train.py", name="script/train.py")},
    programs={"tell": "/usr/bin/tell"},
)

CASES: dict[str, tuple[Facts, tuple[str, ...]]] = {
    "cpu-o2": (LAPTOP, ("amp=o2", "batch=512")),
    "two-gpus": (TWO_V100, ("amp=o1", "amp.deny=[softmax,conv2d]", "loss_scale=tf", "batch=256", "compile=true")),
    "one-of-two": (
        TWO_A100,
        ("amp=o2", "visible_gpus=[1]", "train.lr=0.5", "steps=100", "name=half", "require_proof=false"),
    ),
    "any-of-two": (TWO_A100, ("amp=o2", "gpus=1", "wait_gpus=true")),
    "hostile": (
        LAPTOP,
        (
            "env.A=$(id) `id` 'x' \"y\" \\ ${HOME} ; & | > * ~ !",
            "env.B=é ü 漢字 🦊",
            "env.C=",
            "env.D=-rf",
            "env.E=a,b=c:d",
            "secrets.KEY=~/.key with space",
            "run_root=/data/my 'runs' $x",
            "cluster.setup=['module load cuda/12.4','ulimit -c 0']",
        ),
    ),
    "script": (
        WITH_SCRIPT,
        (
            *("recipe=script", "script=train.py", "amp=o1", "script.stop_signal=USR2", "restart.max=2"),
            *(
                "after=20260101-000000-old-one",
                "notify=tell mei",
                "secrets.KEY=/home/mei/key",
                "cluster.time=1:00:00",
            ),
        ),
    ),
    "bare-script": (
        WITH_SCRIPT,
        (
            *("recipe=script", "script=train.py", "amp=o0", "train.bare=true"),
            *("script.stop_signal=null", "script.resume_arguments=[--resume]"),
        ),
    ),
}


def plan_of(name: str) -> Plan:
    facts, words = CASES[name]
    spec = spec_of(*words)
    return resolve(spec, dataclasses.replace(facts, run_root=spec.launch.run_root.replace("~", facts.home)))


def text_of(name: str) -> str:
    """The plan's JSON, a key a line, of settings too."""
    values = to_json(plan_of(name))
    values |= {f"settings.{key}": value for key, value in values.pop("settings").items()}
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def script_of(name: str) -> str:
    return render(plan_of(name).bind("20260102-030405-calm-fox"))


def test_golden_plan_and_script() -> None:
    golden.assert_text(GOLDEN / "cpu-o2.plan", text_of("cpu-o2"))
    golden.assert_text(GOLDEN / "cpu-o2.sh", script_of("cpu-o2"))


@pytest.mark.parametrize("name", [name for name in CASES if name != "cpu-o2"])
def test_golden_differences_from_that_plan_and_script(name: str) -> None:
    golden.check_difference(GOLDEN / f"{name}.sh.diff", script_of(name), script_of("cpu-o2"))
    if name in ("two-gpus", "hostile"):  # the others differ in what their scripts hold too
        golden.check_difference(GOLDEN / f"{name}.plan.diff", text_of(name), text_of("cpu-o2"))


def test_shellcheck_reports_nothing_in_scripts() -> None:
    golden.shellcheck({name: script_of(name) for name in CASES})


@pytest.mark.parametrize("name", CASES)
def test_a_plan_survives_json(name: str) -> None:
    plan = plan_of(name)
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"swept": 3}, "this plan is damaged, .*: swept=3 should be a list"),
        ({"swept": [["amp"]]}, r"this plan is damaged, .*: swept\[0\]=.* should be a list of 2"),
        ({"arm": 0}, "this plan is damaged, .*: arm is text, and 0 is a whole number"),
        ({"nodes": "two"}, "this plan is damaged, .*: nodes=two should be a whole number"),
        ({}, r"this plan is damaged, or of another version: run_root is missing"),
    ],
)
def test_a_damaged_plan_is_refused_in_a_sentence(damage, says):
    with pytest.raises(UsageError, match=says):
        from_json({"schema": 2, "name": "x", **damage})


def test_the_words_typed_reach_the_trainer_by_the_run_folder_alone(tmp_path: Path) -> None:
    words = ("amp=o2", "batch=512", "train.lr=0.5", "loss_scale=tf", "amp.deny=[conv2d,softmax]", "seed=3")
    plan = resolve(spec_of(*words), LAPTOP)
    assert command(plan)[1:] == ("-m", "amp_launcher.recipes.mnist.train_torch", f"run={plan.run_dir}")
    (tmp_path / "plan.json").write_text(json.dumps(to_json(plan)))
    read = arguments.parse([f"run={tmp_path}"], "mnist", "torch").settings
    assert read == dataclasses.replace(arguments.parse(words, "mnist", "torch").settings, device="cpu")


@pytest.mark.parametrize(
    ("facts", "words", "visible", "processes", "device"),
    [
        (LAPTOP, (), "", 1, "cpu"),
        (TWO_V100, (), "0,1", 2, "cuda"),
        (TWO_V100, ("gpus=1",), None, 1, "cuda"),
        (TWO_V100, ("gpus=v100:1",), None, 1, "cuda"),
        (TWO_V100, ("gpus=v100:2",), "0,1", 2, "cuda"),
        (V100_AND_A100, ("gpus=a100:1",), "1", 1, "cuda"),
        (V100_AND_A100, ("gpus=a100:1", "visible_gpus=[1]"), "1", 1, "cuda"),
        (TWO_V100, ("visible_gpus=[1]",), "1", 1, "cuda"),
        (TWO_V100, ("visible_gpus=[1,0]",), "1,0", 2, "cuda"),
        (TWO_V100, ("gpus=0",), "", 1, "cpu"),
        (TWO_V100, ("device=cpu",), "", 1, "cpu"),
        (TWO_V100, ("device=cpu", "gpus=1"), None, 1, "cpu"),
    ],
)
def test_gpus_become_what_the_job_sees_or_are_left_to_its_start(
    facts: Facts, words: tuple[str, ...], visible: str | None, processes: int, device: str
) -> None:
    plan = resolve(spec_of(*words), facts)
    assert plan.env.get("CUDA_VISIBLE_DEVICES") == visible
    assert (plan.processes, plan.settings["device"]) == (processes, device)
    assert plan.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


TOKENS = "recipe=gpt data=tokens data.dir=/d"


def with_files(*names: str, **sizes: int | None) -> Facts:
    """A laptop with these files in /d, those with a size of so many bytes."""
    known = {f"/d/{name}.bin": size for name, size in sizes.items()}
    return dataclasses.replace(LAPTOP, folders={"/d": names}, file_sizes=known)


REFUSED: list[tuple[Facts, dict[str, str]]] = [
    (
        LAPTOP,
        {
            "visible_gpus=[0]": "visible_gpus=[0]: there is no GPU 0 on box, which has no GPU",
            "device=cuda": "device=cuda, and this job has no GPU: box has no GPU; say device=cpu",
            "xla=true": "for torch say compile=true",
            "framework=tensorflow compile=true": "compile=true is torch.compile; for TensorFlow say xla=true",
            "tf32=true amp=o0": "tf32=true: a CPU has no TF32; say tf32=false",
            "data=mnist": "data=mnist needs data.dir",
            "data=mnist data.dir=/nowhere": "data.dir=/nowhere is not a folder",
            "recipe=efficientnet": "data=cifar100 needs data.dir, the folder with train.bin and test.bin, or",
            "recipe=efficientnet batch=8": "; data=synthetic needs no files",
            "recipe=simplenet data.download=true": "data=synthetic needs no files; leave it out",
            "recipe=resnet50 data=imagenet data.dir=/d data.download=true": "get it from "
            "https://image-net.org/download.php, which wants an account, and name its folder with data.dir",
        },
    ),
    (
        TWO_V100,
        {
            "visible_gpus=[2]": "there is no GPU 2 on box, which has GPU 0 Tesla V100",
            "gpus=3": "gpus=3: box has GPU 0 Tesla V100-SXM2-32GB, GPU 1",
            "gpus=v100:3": "gpus=v100:3: box has GPU 0 Tesla V100-SXM2-32GB, GPU 1 Tesla V100-SXM2-32GB",
            "gpus=a100:1": "gpus=a100:1: box has GPU 0 Tesla V100-SXM2-32GB, GPU 1 Tesla V100-SXM2-32GB",
            "gpus=a100": "gpus=a100 should be a whole number, or TYPE:NUMBER, as a100:4",
            "gpus=a100:0": "gpus=a100:0 should be a whole number, or TYPE:NUMBER, as a100:4",
            "batch=3": "batch=3 does not divide by 2 devices x accumulate=1; say batch=2 or 4",
            "amp=o1 amp.dtype=bfloat16": "needs compute capability 8.0, and this GPU has 7.0",
            "amp=o0 tf32=true": "tf32=true: TF32 needs compute capability 8.0, and this GPU has 7.0; say tf32=false",
        },
    ),
    (KEPLER, {"amp=o1": "needs compute capability 7.0"}),
    (
        with_files("train-images-idx3-ubyte.gz"),
        {
            "data=mnist data.dir=/d": "data.dir=/d lacks train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
            "t10k-labels-idx1-ubyte"
        },
    ),
    (
        with_files("train.bin", "test"),
        {
            "recipe=efficientnet data.dir=/d": "data.dir=/d holds none of train.bin and test.bin, or cifar-100-binary",
        },
    ),
    *(
        (with_files("train.bin", "val.bin", **sizes), {TOKENS: says})
        for sizes, says in (
            ({"train": 0}, "/d/train.bin is empty; it should hold token ids of train.ids=uint16"),
            ({"train": 801}, "/d/train.bin has 801 bytes, which is not a whole number of train.ids=uint16"),
            ({"train": 512}, "/d/train.bin has 256 tokens, and a sample of train.context=256 takes 257"),
            ({"val": None}, "data=tokens: /d/val.bin is not a file that can be read"),
            ({"train": 8 * 512}, "batch=8 is more than the 7 samples of train.context=256 in /d/train.bin"),
        )
    ),
    (
        dataclasses.replace(LAPTOP, packages={}),
        {
            "": "the one that these commands make:\n  python3 -m venv ~/torch && ~/torch/bin/pip install torch",
            "amp=o2": "on box; a job on another host (cluster=ssh, or cluster=slurm with cluster.login) needs none",
        },
    ),
    (
        dataclasses.replace(LAPTOP, packages={}, python_version="", uv="one", uv_is_made=False, uv_lock="/p/uv.lock"),
        {"python=uv": "framework=torch is not in /p/uv.lock; this adds it:\n  cd /p && uv add torch"},
    ),
    (dataclasses.replace(LAPTOP, python_problem="python=uv: no uv"), {"python=uv": "python=uv: no uv (command line)"}),
    (dataclasses.replace(LAPTOP, python_version=""), {"python=python9": "can't be run on box"}),
    (dataclasses.replace(LAPTOP, python_version="3.9.2"), {"": "is 3.9.2, and trainers need 3.10; name a newer one"}),
    (dataclasses.replace(LAPTOP, run_root_problem="/x is not writable for mei"), {"": "name another folder"}),
    (dataclasses.replace(LAPTOP, missing=("/k",)), {"secrets.K=/k": "secrets.K=/k: there is no such file"}),
    (dataclasses.replace(LAPTOP, open_secrets=("/k",)), {"secrets.K=/k": "chmod 600 /k"}),
]


@pytest.mark.parametrize(
    ("facts", "words", "says"), [(facts, words, says) for facts, of in REFUSED for words, says in of.items()]
)
def test_what_the_host_cannot_do_is_refused(facts: Facts, words: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve(spec_of(*words.split()), facts)
    assert says in str(error.value)


def test_files_of_token_ids_are_planned_with_also_where_their_sizes_are_not_known() -> None:
    spec = spec_of(*TOKENS.split())
    unknown, known = with_files("train.bin", "val.bin"), with_files("train.bin", "val.bin", train=8 * 512 + 2, val=514)
    assert resolve(spec, unknown).settings == resolve(spec, known).settings


def test_cifar100_may_be_downloaded_into_a_folder_that_is_yet_to_be_made() -> None:
    plan = resolve(spec_of("recipe=efficientnet", "data.dir=/new", "data.download=true"), LAPTOP)
    assert {"data.dir=/new", "data.download=true"} <= set(plan.words)


def test_relative_and_home_paths_are_absolute_for_the_job() -> None:
    facts = dataclasses.replace(LAPTOP, folders={"~/mnist": (), "mnist": ()})
    for typed, meant in (("~/mnist", "/home/mei/mnist"), ("mnist", "/home/mei/project/mnist")):
        plan = resolve(spec_of("data=mnist", f"data.dir={typed}", "data.download=true"), facts)
        assert plan.settings["data"]["dir"] == meant
        assert f"data.dir={meant}" in plan.words


def test_two_gpus_are_two_processes_of_paddles_own_launcher_for_its_dynamic_graphs_alone() -> None:
    facts = dataclasses.replace(TWO_A100, packages={"paddle": "3.3.1"})
    words = ("framework=paddle", "recipe=simplenet", "gpus=2")
    plan = resolve(spec_of(*words, "amp=o1"), facts)
    assert (plan.processes, plan.gpus) == (2, 2)
    assert command(plan)[1:] == (
        *("-m", "paddle.distributed.launch", "--nproc_per_node=2", f"--log_dir={plan.run_dir}/ranks"),
        *(
            f"{plan.code_dir}/amp_launcher/paddle/rank.py",
            "amp_launcher.recipes.simplenet.train_paddle",
            f"run={plan.run_dir}",
        ),
    )
    with pytest.raises(UsageError, match=r"train\.api=static runs in one process; say gpus=1, or train\.api=loop"):
        resolve(spec_of(*words, "amp=o0", "train.api=static"), facts)


@pytest.mark.parametrize(
    ("facts", "words", "mode"),
    [
        (TWO_V100, ("amp=o2",), "at o2 (half_model_fp32_masters), float16, dynamic loss scale, TF32 off, batch"),
        (TWO_A100, ("amp=o2",), "at o2 (half_model_fp32_masters), bfloat16, TF32 on, batch"),
        (TWO_A100, ("amp=o0",), "at o0 (float32), TF32 off, batch"),
        (TWO_A100, ("amp=o1", "amp.dtype=float16", "tf32=false"), "float16, dynamic loss scale, TF32 off, batch"),
        (LAPTOP, ("amp=o1",), "at o1 (autocast), bfloat16, batch"),
    ],
)
def test_a_plan_shows_what_auto_became(facts: Facts, words: tuple[str, ...], mode: str) -> None:
    plan = resolve(spec_of(*words), facts)
    assert mode in summary(plan)
    assert to_json(plan)["precision"] == plain(plan.precision)


def test_a_plan_for_a_gpu_that_nobody_knows_leaves_it_open() -> None:
    unknown = dataclasses.replace(
        TWO_V100, gpus=tuple(dataclasses.replace(gpu, capability="") for gpu in TWO_V100.gpus)
    )
    plan = resolve(spec_of("amp=o1"), unknown)
    assert plan.precision == Decided()
    assert "float16 or bfloat16 by its GPU, a loss scale if float16, TF32 if the GPU has it" in summary(plan)
