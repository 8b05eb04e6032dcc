"""The files of the user's own script: which ones around it are part of the code that runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_launcher.typed import nearest
from launcher.code import code_store, exclusions, git, outputs, snapshot
from launcher.config.paths import expanded
from launcher.config.script_text import own_modules
from launcher.errors import UsageError
from launcher.runs import run_ids, store

_COUNTED = 10 * outputs.MAX_FILES
"""Files after which the search ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The code that is sent along with a script."""

    root: Path
    files: dict[str, Path]
    """By their names in the snapshot."""
    credentials: tuple[str, ...]
    """Files that are left out because they are credentials; relative to `root`."""
    left_out: dict[str, str]
    """Files and folders that are left out as results, relative to `root`, each with its size or the reason."""


def name_in_snapshot(script: Path) -> str:
    """The script's own name in the snapshot, as `script/train.py`."""
    return f"{snapshot.SCRIPT}/{script.relative_to(root_of(script)).as_posix()}"


def root_of(script: Path) -> Path:
    """The root of a script's code: its git checkout, or its folder if git doesn't know the script."""
    return _checkout(script) or script.parent


def collect(script: Path, include: Sequence[str] = ()) -> Collected:
    """The files that are sent along with a script, and the script.

    In a git checkout these are the files that git tracks or would track, with those of submodules; in another folder
    all files that its .gitignore files allow, without hidden folders. Credentials, virtual environments, caches and run
    folders are always left out. Linked folders are included if they are in the checkout, or are a Python package.
    `include` has patterns of further files to include. A file that git does not track and that nothing includes is left
    out if it looks like a result, or a process writes it, or it would be too much; never a `.py`. Raises `UsageError`
    for more than a snapshot may hold, and for a pattern that matches nothing or a credential.
    """
    checkout = _checkout(script)
    root = checkout or script.parent
    found = {script: True, **dict(_in_checkout(root) if checkout else _in_folder(root))}
    found[script] = True
    found |= {path: True for pattern in include for path in _included(pattern, root)}
    files: dict[str, outputs.File] = {}
    for path, wanted in found.items():
        if path.is_file() and not exclusions.is_debris(path.name):
            files[path.relative_to(root).as_posix()] = outputs.File(path=path, status=path.stat(), wanted=wanted)
            if len(files) > _COUNTED:
                break
    left_out = outputs.found_in(files, root)
    kept = {name: file for name, file in files.items() if name not in left_out}
    if not outputs.is_too_much(kept):
        credentials = [name for name, file in kept.items() if exclusions.is_credential(file.path, root)]
        credentials = [name for name in credentials if kept[name].path != script]
        taken = {f"{snapshot.SCRIPT}/{name}": file.path for name, file in kept.items() if name not in credentials}
        return Collected(
            root=root, files=taken, credentials=tuple(credentials), left_out=outputs.in_words(files, left_out)
        )
    limit = (
        f"{snapshot.MAX_BYTES // 2**20} MiB"
        if outputs.size_of(kept) > snapshot.MAX_BYTES
        else f"{outputs.MAX_FILES:,} files"
    )
    sizes = {f"{snapshot.SCRIPT}/{name}": file.status.st_size for name, file in kept.items()}
    named = {f"{snapshot.SCRIPT}/{name}": file.path for name, file in kept.items()}
    raise UsageError(
        f"script={script}: its folder {root} is sent along with it, and holds more than {limit} "
        f"({snapshot.largest(named, sizes)}); list data and results in {root / '.gitignore'}, or put the code into a "
        "folder or git checkout of its own"
    )


def imported(script: Path, collected: Collected) -> tuple[Path, ...]:
    """Modules of the script's project that it imports, directly or through such a module that is sent along."""
    return tuple(own_modules(script, follow=set(collected.files.values()).__contains__))


def left_out_imports(modules: Sequence[Path], collected: Collected) -> tuple[str, ...]:
    """Those of these modules that are not sent along; relative to the root of the code."""
    sent = set(collected.files.values())
    return tuple(os.path.relpath(path, collected.root) for path in modules if path not in sent)


def left_out_beside(script: Path, collected: Collected) -> tuple[str, ...]:
    """What lies in the script's folder and is not sent along, but for modules, caches, environments, folders of runs
    or without files, hidden files, and what is told of otherwise; relative to the root of the code."""
    sent = {path for file in collected.files.values() for path in (file, *file.parents)}
    told = {*collected.credentials, *(name for name in collected.left_out)}
    left = []
    for path in sorted(script.parent.iterdir()):
        name = path.relative_to(collected.root).as_posix()
        is_other = path in sent or name in told or path.name.startswith(".") or path.suffix == ".py"
        if is_other or exclusions.is_debris(path.name) or not os.access(path, os.R_OK):
            continue
        is_empty = path.is_dir() and not any(names for _, _, names in os.walk(path))
        if not (is_empty or (path.is_dir() and (exclusions.is_derived(path) or _of_runs(path) or _holds_runs(path)))):
            left.append(name)
    return tuple(left)


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is a run root."""
    return any(code_store.is_folder(path.name) for path in folder.glob(".code*"))


def check_script(named: str, script: Path, *, alone: bool) -> None:
    """Refuse a script that isn't there, or that couldn't be run from the snapshot. Raises `UsageError`."""
    try:
        if script.is_dir():
            raise UsageError(f"script={named} is a folder; name the file in it")
        if not script.is_file():
            near = sorted(path.name for path in script.parent.glob("*.py")) if script.parent.is_dir() else []
            others = f"; {script.parent} has {', '.join(near[:8])}" if near else ""
            in_image = ". For a file of the container's image say script=image:PATH"
            raise UsageError(
                f"script={named}: there is no such file{nearest(script.name, near) or f'{others}{in_image}'}"
            )
        script.read_bytes()
    except PermissionError:
        raise UsageError(f"script={named} may not be read") from None
    shadowing = (script.parent / "amp_launcher").is_dir() or (script.parent / "amp_launcher.py").is_file()
    if shadowing and not alone:
        raise UsageError(
            f"script={named}: the amp_launcher beside it would be imported instead of ours; rename it, or "
            "start the script with train.bare=true"
        )


def _checkout(script: Path) -> Path | None:
    """The git checkout that the script belongs to; None where git ignores it or isn't there.

    Raises `UsageError` for one that git refuses to read, as another person's: what is ignored there can't be known.
    """
    top = _readable_top(script.parent)
    return top if top and git.knows(script) else None


def _readable_top(folder: Path) -> Path | None:
    """The top of the checkout that a folder is in; None where there is none. Raises `UsageError` as `_checkout`."""
    top = git.top_of(folder)
    within = next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
    if top is None and within is not None and git.is_other_users(within):
        raise UsageError(
            f"git does not read {within}, which belongs to another user, so the files of the script are unknown; if "
            f"you trust it: git config --global --add safe.directory '{within}'"
        )
    return top


def _in_checkout(root: Path) -> Iterator[tuple[Path, bool]]:
    """Files of a checkout, or of a folder that was one until its repository was deleted, and whether git tracks
    them."""
    yield from _walked(root, git.files_of_checkout(root)) if _readable_top(root) else _in_folder(root)


def _in_folder(root: Path, links: bool = True) -> Iterator[tuple[Path, bool]]:
    """Files of a folder that is no checkout of its own, as its .gitignore files have it, but for hidden folders."""
    names = git.files_of_folder(root)
    shown = (name for name in names if not any(part.startswith(".") for part in name.split("/")[:-1]))
    yield from _walked(root, dict.fromkeys(shown, False), links)


def _walked(root: Path, names: Mapping[str, bool], links: bool = True) -> Iterator[tuple[Path, bool]]:
    """The files that git lists in a folder, with those of linked folders and of checkouts in it, and whether git tracks
    them."""
    is_no_code = functools.cache(lambda folder: _of_runs(folder) or exclusions.is_derived(folder))
    code = {
        name: tracked
        for name, tracked in names.items()
        if not any(is_no_code(root / parent) for parent in Path(name).parents if parent.name)
    }
    for name, tracked in code.items():
        path = root / name
        if path.is_symlink() and path.is_dir():
            if links:  # none in a linked folder, since links may form a cycle
                yield from _linked(path, root, code)
        elif (path / ".git").exists():  # a submodule, or another checkout inside this one
            yield from _in_checkout(path)
        else:
            yield path, tracked


def _of_runs(folder: Path) -> bool:
    """Whether a folder is a run's, or what is kept about runs in the folder that they are in. A run's name tells it
    while its files are still being written, by another launcher; its files tell it under another name."""
    return (
        folder.name in (store.UNFINISHED, store.SWEEPS)
        or code_store.is_folder(folder.name)
        or run_ids.is_id(folder.name)
        or all((folder / name).is_file() for name in ("plan.json", "run.sh"))
    )


def _linked(link: Path, root: Path, code: Mapping[str, bool]) -> Iterator[tuple[Path, bool]]:
    """The code in a linked folder. Within `root` these are its files in `code`; elsewhere the files of a Python
    package, but of no other folder, which may hold any amount of data. None if the folder contains the link."""
    target, top = link.resolve(), root.resolve()
    if target in (link.parent.resolve(), *link.parent.resolve().parents):
        return
    if top not in target.parents:
        if (target / "__init__.py").is_file():
            yield from _in_folder(link, links=False)
    elif any((parent / ".git").exists() for parent in target.parents if top in parent.parents):
        yield from _in_folder(link, links=False)  # within a submodule, whose files are not listed here
    else:
        inside = f"{target.relative_to(top).as_posix()}/"
        within = {name.removeprefix(inside): tracked for name, tracked in code.items() if name.startswith(inside)}
        yield from _walked(link, within, links=False)


def _included(pattern: str, root: Path) -> Iterator[Path]:
    """The files that a pattern of `script.include` names, and those in folders that it names.

    Patterns are `pathlib`'s, relative ones from the current folder. Raises `UsageError`.
    """
    key = f"script.include=[{pattern}]"
    absolute_pattern = Path(os.path.normpath(Path.cwd() / expanded(pattern)))
    try:
        matches = sorted(Path(absolute_pattern.anchor).glob(str(absolute_pattern.relative_to(absolute_pattern.anchor))))
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"{key} is not a pattern of files: {error}") from None
    if not matches:
        raise UsageError(f"{key}: there is no such file (looked for {absolute_pattern})")
    for match in matches:
        if match != root and root not in match.parents:
            raise UsageError(f"{key}: {match} is not in {root}, the folder of the script")
        if match.is_file() and exclusions.is_credential(match, root):
            raise UsageError(
                f"{key}: {match} is a credential, and credentials are never copied; say secrets.NAME={match}"
            )
        for folder, folders, names in os.walk(match):
            folders[:] = [name for name in folders if not exclusions.is_derived(Path(folder, name))]
            yield from (Path(folder, name) for name in sorted(names))
        if match.is_file():
            yield match
