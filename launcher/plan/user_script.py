"""`recipe=script`: the user's own file as part of a plan, and what the launcher does about its precision."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from amp_launcher.around import script
from amp_launcher.around.script import IN_IMAGE, NGC_TENSORFLOW1, in_image
from amp_launcher.around.script_source import Source
from amp_launcher.precision.levels import Framework
from amp_launcher.shown import some
from amp_launcher.typed import SettingsError, show
from launcher import admit
from launcher.config.schema import OWN_FOLDER, Launch
from launcher.plan.model import CHECKPOINTS, Plan, ScriptPlan
from launcher.runs import address as addresses

if TYPE_CHECKING:
    from amp_launcher.precision.resolved import ResolvedPrecision
    from launcher.config.spec import JobSpec
    from launcher.probe.facts import Facts, Script

_NAMED = 8
"""Largest number of files that a note names."""


def choose(spec: JobSpec, facts: Facts | None) -> ScriptPlan | None:
    """The script of a job, or None for our own recipes; for one in an image the host may be unknown. Raises
    `SettingsError`."""
    launch = spec.launch
    if launch.script is None:
        return None
    if in_image(launch.script):
        file, root, named = launch.script.removeprefix(IN_IMAGE), "", ""
        workdir = launch.workdir or posixpath.dirname(file)
        if not posixpath.isabs(workdir):
            raise SettingsError(
                f"script={launch.script} is relative to a folder of the image: say workdir=/FOLDER, or name the file "
                "in full",
                "workdir",
            )
    else:
        assert facts is not None
        file = facts.scripts[launch.script].name
        workdir = _working_folder(spec, facts)
        root, named = _in_checkout(spec, facts, workdir)
        if workdir == "/" and launch.container.kind != "none":
            raise SettingsError("workdir=/ can't be mounted into a container; name a folder, or say workdir=run")
        if launch.workdir in facts.missing:
            raise SettingsError(f"workdir={launch.workdir}: there is no such folder")
    inputs = _inputs(launch, workdir, facts) if facts else {}
    return ScriptPlan(
        file=file,
        in_image=in_image(launch.script),
        root=root,
        named=named,
        workdir=workdir,
        inputs=inputs,
        below="" if workdir or facts is None else _below(inputs, facts.cwd),
        arguments=launch.arguments,
        bare=spec.training.train.bare,
        command=spec.training.train.command,
        stop_signal=launch.stop_signal,
        resume_arguments=launch.resume_arguments,
    )


def with_framework(spec: JobSpec, facts: Facts) -> tuple[JobSpec, tuple[str, ...]]:
    """The job with a framework that its Python has, where its script's text shows none, and notes on that. Raises
    `SettingsError` for a level that nothing could apply."""
    launch, training = spec.launch, spec.training
    if not spec.assumed or launch.script is None or in_image(launch.script) or training.train.bare:
        return spec, ()
    note = f"no import of a framework was found in {posixpath.basename(launch.script)}"
    known = [name for name in get_args(Framework) if name in facts.packages]
    told = bool(facts.python_version) and launch.container.kind == "none" and not launch.cluster.setup
    if training.framework in known or len(known) > 1 or not told or launch.nodes > 1:
        return spec, (f"{note}; framework={training.framework} is assumed",)
    found: Literal[Framework, "none"] = known[0] if known else "none"
    has = f"{facts.python} on {facts.host} has"
    if known:
        note += f"; framework={found}, the one that {has}"
    elif training.amp.level == "o0" or training.train.precision == "script":
        note += f", and {has} none, so nothing will be proved (framework=none)"
    else:
        raise SettingsError(
            f"amp={training.amp.level}: {note}, and {has} none, so nothing can apply it; say amp=o0, or name another "
            "Python with python=",
        )
    return dataclasses.replace(spec, training=dataclasses.replace(training, framework=found)), (note,)


def _working_folder(spec: JobSpec, facts: Facts) -> str:
    """The folder in which a script of this machine starts; empty for one of the run's own. Where none is named, a
    single run on this machine starts in the current one: another machine has no such folder, and several runs would
    overwrite each other's files in it."""
    launch = spec.launch
    is_single_and_local = addresses.of(launch.cluster) is None and not spec.swept
    folder = launch.workdir or ("." if is_single_and_local else OWN_FOLDER)
    return "" if folder == OWN_FOLDER else facts.absolute(folder)


def _in_checkout(spec: JobSpec, facts: Facts, workdir: str) -> tuple[str, str]:
    """The script's checkout and its name there, for a job that finds that folder; empty for another machine, for a
    container with nothing of it, and for a bare script, which is started alone."""
    launch = spec.launch
    assert launch.script is not None
    known = facts.scripts[launch.script]
    is_mounted = workdir and f"{known.root}/".startswith(f"{workdir}/")
    far = addresses.of(launch.cluster) is not None or (launch.container.kind != "none" and not is_mounted)
    if far or spec.training.train.bare:
        return "", ""
    if launch.script.startswith("~"):
        return known.root, known.path
    return known.root, launch.script if workdir == facts.cwd else facts.absolute(launch.script)


def _inputs(launch: Launch, workdir: str, facts: Facts) -> dict[str, str]:
    """The links in a folder of the run's own, by their paths from where the script starts; none for another folder,
    which has to hold each input already. A path that begins with `..` is linked under that path, and any other under
    its last name.

    For a container, links are resolved: Apptainer silently mounts nothing on a path that is a link in the container.
    Raises `SettingsError`.
    """
    by_name: dict[str, str] = {}
    for path in launch.inputs:
        absolute = facts.absolute(path)
        last = posixpath.basename(absolute)
        typed = posixpath.normpath(path)
        name = typed if typed.startswith("../") and posixpath.basename(typed) != ".." else last
        problem = ""
        if not path or not last:
            problem = "it has no name for a link"
        elif _above(name) > len(_folders(facts.cwd)):
            problem = f"it leads above {facts.cwd} more often than that has folders"
        elif path in facts.missing:
            problem = f"there is no such file or folder on {facts.host}" + f" ({absolute})" * (absolute != path)
        elif by_name.get(name, absolute) != absolute:
            problem = f"{by_name[name]} and {absolute} would have links of the same name, {name}"
        elif workdir and absolute != posixpath.normpath(posixpath.join(workdir, name)):
            problem = (
                f"the script starts in {workdir}, where nothing is linked; say workdir=run for a folder of the run's "
                "own with links"
            )
        if problem:
            raise SettingsError(f"script.inputs={show([path])}: {problem}")
        by_name[name] = absolute
    if workdir:
        return {}
    is_contained = launch.container.kind != "none"
    # Sorted: a folder is linked before what lies in it, which is there then.
    return {name: facts.real_paths.get(path, path) if is_contained else path for name, path in sorted(by_name.items())}


def _below(inputs: Mapping[str, str], folder: str) -> str:
    """Where in the run's own folder a script starts: as deep as links above it need, with the names of the folder
    where the command was typed."""
    depth = max(map(_above, inputs), default=0)
    return "/".join(_folders(folder)[-depth:]) if depth else ""


def _above(name: str) -> int:
    return name.split("/").count("..")


def _folders(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def start_folder(plan: Plan) -> str:
    """The folder in which a plan's script starts, with its links, for people."""
    assert plan.script is not None
    if plan.script.workdir:
        return plan.script.workdir
    folder = plan.script.folder(plan.run_dir, "/N" if plan.arm else "") + " for its block N" * bool(plan.arm)
    links = ", ".join(f"{name} -> {path}" for name, path in plan.script.inputs.items())
    return f"{folder}, {f'with {links}' if links else 'empty'}"


def stem(launch: Launch) -> str:
    """The script's name without its folder and ending, as part of a run's name; empty where there is none."""
    name = posixpath.basename((launch.script or "").removeprefix(IN_IMAGE))
    return re.sub(r"[^\w.+-]", "-", name.removesuffix(".py").removesuffix(".sh"))[:40]


def source(spec: JobSpec, facts: Facts | None) -> Source:
    """The precision settings found in the text of the job's script; empty where the script is not here."""
    known = _known(spec, facts)
    return known.source if known else Source()


def _known(spec: JobSpec, facts: Facts | None) -> Script | None:
    return facts.scripts.get(spec.launch.script or "") if facts else None


def is_ngc_tensorflow1(spec: JobSpec) -> bool:
    """Whether the image is one with NVIDIA's own build of TensorFlow 1. Raises `SettingsError` where nothing tells,
    and a bare script's precision depends on it: such images may apply mixed precision unless their variables forbid it.
    """
    launch, training = spec.launch, spec.training
    if launch.image is None and launch.image_is is None:
        return False
    from launcher.containers import catalogue, references

    release = references.release_of(launch.image, launch.image_is)
    depends = training.framework == "tensorflow" and training.train.bare and training.train.precision != "script"
    if release is None and launch.image_is is None and depends:
        raise SettingsError(
            f"image={launch.image}: its name does not say whether it holds NVIDIA's TensorFlow 1, whose variables "
            "decide on mixed precision; say which it is, as image.is=ngc-tensorflow1:19.08, or image.is=other",
        )
    return release is not None and release.framework == "tensorflow" and catalogue.parse(release.version) < (2,)


def environment(mechanism: str, level: str) -> dict[str, str]:
    """What says the level to a script that nothing of ours is around."""
    if mechanism != "ngc_environment":
        return {}
    return dict.fromkeys(NGC_TENSORFLOW1, "1" if level == "o1" else "0")


def empty_folder(subject: str) -> str:
    """The note on a start without files: the subject is what starts."""
    return f"{subject} starts in an empty folder of its own; script.inputs=[data] links data there"


def is_text(spec: JobSpec) -> bool:
    """Whether the job is one command in an image, started as it is: a published one, which any machine can print."""
    is_in_image = spec.launch.script is not None and in_image(spec.launch.script)
    return is_in_image and spec.training.train.bare and spec.training.train.processes == spec.launch.nodes == 1


def _of_folder(spec: JobSpec, folder: str) -> Iterator[str]:
    """Notes on the folder of this machine in which a script starts; empty for one of its own."""
    launch = spec.launch
    subject = "each of these runs" if spec.swept else "the script"
    if launch.workdir is None and not folder and not launch.inputs:
        yield empty_folder(subject)
    elif folder and [key for key, _ in spec.swept if key != "workdir"]:
        yield (
            f"all runs of this sweep start in {folder}, where one can overwrite another's files; without workdir= each "
            "starts in a folder of its own"
        )


def tracker_ids(plan: Plan) -> dict[str, str]:
    """Variables by which Weights & Biases continues one run through all attempts, where the job's variables configure
    it and name no run themselves. MLflow accepts only the id of a run that its server has created."""
    names = (*plan.env, *plan.passed, *plan.secrets)
    if plan.script is None or "WANDB_RUN_ID" in names or not any(name.startswith("WANDB_") for name in names):
        return {}
    ids = {"WANDB_RUN_ID": f"{plan.run_id}-{plan.arm}" if plan.arm else plan.run_id, "WANDB_RESUME": "allow"}
    return {name: value for name, value in ids.items() if name not in names}


def _of_restarts(spec: JobSpec, known: Script | None) -> Iterator[str]:
    """That `restart.max` will start nothing again, as far as can be seen."""
    launch = spec.launch
    words = " ".join((*launch.arguments, *launch.cluster.setup, *(value or "" for value in launch.env.values())))
    if launch.restart.max and not launch.resume_arguments and known and not known.saves and CHECKPOINTS not in words:
        yield (
            f"restart.max={launch.restart.max} starts nothing again without a checkpoint, and {launch.script} names "
            f"neither job.checkpoint_dir() nor {CHECKPOINTS}; save there, or set script.resume_arguments"
        )


def _left_out(known: Script) -> Iterator[str]:
    """What a job that has the snapshot alone will lack."""
    if known.credentials:
        names = _listed(known.credentials)
        yield f"left out of {known.root} as credentials: {names}; secrets.NAME=FILE brings one to the job"
    if known.left_out:
        described = _listed([f"{name} ({why})" for name, why in known.left_out.items()])
        include = ",".join(list(known.left_out)[:_NAMED])
        yield (
            f"left out of {known.root} as results, since git does not track them: {described}; "
            f"script.include=[{include}] takes them along"
        )
    if known.lacking:
        names, include = _listed(known.lacking), ",".join(known.lacking[:_NAMED])
        yield (
            f"the script imports {names} of {known.root}, which git ignores and the job will lack; "
            f"script.include=[{include}] takes them along"
        )
    if known.beside:
        yield (
            f"the job finds nothing of {_listed(known.beside)} beside its script: git ignores what is in {known.root} "
            f"there; script.include=[{','.join(known.beside[:_NAMED])}] takes it along, or name its path there"
        )


def _listed(names: Sequence[str]) -> str:
    return some(list(map(admit.clean, names)), _NAMED)


def advice(spec: JobSpec, facts: Facts | None, gpus: int, precision: ResolvedPrecision) -> tuple[str, ...]:
    """What a user of scripts should know of this one."""
    launch, train = spec.launch, spec.training.train
    if launch.script is None:
        return ()
    notes, known = [], _known(spec, facts)
    if in_image(launch.script):
        notes.append(f"{launch.script.removeprefix(IN_IMAGE)} is looked for in the image alone, when the job starts")
    folder = "" if facts is None or in_image(launch.script) else _working_folder(spec, facts)
    if facts and known and not _in_checkout(spec, facts, folder)[0]:
        notes += _left_out(known)
    if gpus > 1 and train.processes == 1:
        notes.append(f"the script is started once and sees {gpus} GPUs; train.processes={gpus} starts one for each")
    notes += () if in_image(launch.script) else _of_folder(spec, folder)
    notes += _of_restarts(spec, known)
    if train.bare and spec.training.amp.claims:
        notes.append("nothing observes what a bare script runs, so nothing will be proved")
    elif spec.training.framework == "paddle" and source(spec, facts).static:
        fails = "; the run fails at the first of them (require_proof=true)" * spec.training.proof_required
        notes.append(f"static graphs (paddle.enable_static) are not observed, so nothing is proved{fails}")
    if given := script.handed_over(precision):
        notes.append(f"amp reaches the script's library as {' and '.join(f'{k}={v}' for k, v in given.items())}")
    elif not train.bare and not script.by_script(train, source(spec, facts)) and spec.training.amp.level != "o0":
        notes.append("amp is applied around the script, which is left as it is")
    return tuple(notes)
