"""Two examples or more for the help of each verb: what they do, and the words to type.

The runs are `wise-oasis` and the sweep `calm-lake`; the files are those of a reader's own project.
"""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("train here, now: the recipe mnist", "amp=o2 batch=512"),
        ("your own script; its arguments follow --", "train.py amp=o1 -- --lr 0.1"),
        ("a sweep of three runs on Slurm", "amp=o0,o1,o2 cluster=slurm gpus=1"),
    ),
    "cmd": (
        ("here, now", "cmd -- ./prepare.sh data/"),
        ("in a queue", "cmd cluster=slurm gpus=0 -- ./prepare.sh data/"),
        ("look first", "cmd --plan -- ./prepare.sh data/"),
    ),
    "up": (
        ("a container here", "up container=docker image=ngc-pytorch name=desk"),
        ("an allocation", "up cluster=slurm gpus=1 cluster.time=2:00:00"),
        ("one command in what is up; without it, a terminal", "shell desk -- python train.py"),
    ),
    "down": (
        ("end what was started with name=desk", "down desk"),
        ("end several, by their ids", "down bold-fox wise-oasis"),
    ),
    "chain": (
        ("look first", "chain nightly.yaml --plan"),
        ("in a queue; keys here are those of each job", "chain nightly.yaml cluster=slurm"),
        ("the jobs, what each needs and its state", "ls calm-lake"),
        ("start again those that failed, and what waited for them", "resume calm-lake failed"),
    ),
    "plan": (
        ("what would run, and what set each value", "plan amp=o2 batch=512"),
        ("the script that would be submitted", "plan train.py amp=o1 --script"),
    ),
    "compare": (
        ("what each mode gains and costs, in the recipe mnist", "compare amp=o0,o1,o2"),
        ("in your own script, in seven rounds", "compare train.py amp=o0,o1 compare.rounds=7 -- --lr 0.1"),
    ),
    "ls": (
        ("everything about one run", "ls wise-oasis"),
        ("the three best runs of a sweep", "ls calm-lake --sort accuracy --best 3"),
    ),
    "logs": (
        ("follow what a run writes", "logs -f wise-oasis"),
        ("its last lines", "logs wise-oasis --lines 20"),
    ),
    "watch": (
        ("one run", "watch wise-oasis"),
        ("all runs of a sweep", "watch calm-lake"),
    ),
    "cancel": (
        ("ask one run to save and stop", "cancel wise-oasis"),
        ("kill all runs of a sweep", "cancel --now calm-lake"),
    ),
    "resume": (
        ("continue a run, for longer", "resume wise-oasis epochs=40"),
        ("the failed and lost runs of a sweep; of a chain, also what waited", "resume calm-lake failed"),
    ),
    "verify": (
        ("replay the steps before the last recorded one", "verify wise-oasis"),
        ("replay them on another node", "verify wise-oasis step=40 cluster.nodelist=node2"),
    ),
    "report": (
        ("one page with charts", "report wise-oasis --html report.html"),
        ("a sweep as Markdown", "report calm-lake --markdown -"),
    ),
    "fetch": (
        ("into the run's folder here", "fetch wise-oasis"),
        ("all runs of a sweep, into a folder", "fetch calm-lake to=results"),
    ),
    "export": (
        ("the weights of one checkpoint", "export wise-oasis step=400 weights.safetensors"),
        ("event files below ./tensorboard", "export wise-oasis to=tensorboard"),
        ("to the server MLFLOW_TRACKING_URI, until the runs have ended", "export calm-lake to=mlflow --follow"),
    ),
    "rm": (
        ("one run", "rm wise-oasis"),
        ("all runs of a sweep, and ask nothing", "rm --yes calm-lake"),
    ),
    "shell": (
        ("a terminal in a container", "shell container=docker image=ngc-pytorch"),
        ("one command with the GPUs of a run", "shell wise-oasis -- nvidia-smi"),
    ),
    "image": (
        ("what is known of an image", "image show ngc-pytorch:25.06"),
        ("a definition for Apptainer, printed", "image render pytorch format=singularity"),
        ("a Dockerfile, printed", "image render cpu"),
    ),
    "doctor": (
        ("this machine", "doctor"),
        ("a cluster, with one GPU", "doctor cluster=slurm gpus=1"),
    ),
}


def lines(verb: str) -> list[str]:
    """The examples of a verb, as its help ends."""
    shown = [line for what, words in EXAMPLES[verb] for line in (f"  # {what}", f"  python -m launcher {words}")]
    return ["", "examples:", *shown]
