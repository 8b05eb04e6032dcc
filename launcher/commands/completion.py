"""Shell completion from the names of files and fields alone: no Hydra, so that a tab costs no wait.

`-sc install=SHELL` prints what the shell evaluates, `-sc query=SHELL` answers it for the line in COMP_LINE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from launcher.commands import VERBS, completed_hosts, help_of
from launcher.config.script_word import is_script
from launcher.errors import UsageError

_BASH = """\
_launcher_complete() {
  local IFS=$'\\n' line=${COMP_LINE:0:$COMP_POINT} word= before=
  COMPREPLY=($(COMP_LINE=$line amp-launcher -sc query=bash 2>/dev/null))
  [[ ${COMPREPLY-} == *[=./] ]] && compopt -o nospace
  # Readline replaces what stands behind the last of its word breaks, and no more; of these, @ is replaced too.
  word=${line##* }
  [[ ${COMP_WORDBREAKS-} != *=* || $word != *=* ]] || before=${word%"${word##*=}"}
  [[ ${COMP_WORDBREAKS-} != *:* || ${word#"$before"} != *:* ]] || before=${word%"${word##*:}"}
  [[ ${COMP_WORDBREAKS-} != *@* || ${word#"$before"} != *@* ]] || before=${word%"@${word##*@}"}
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o default -F _launcher_complete amp-launcher
"""
_ZSH = """\
_launcher_complete() {
  local -a offered
  offered=(${(f)"$(COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX" amp-launcher -sc query=zsh 2>/dev/null)"})
  compadd -S '' -- ${(M)offered:#*[=./]}
  compadd -- ${offered:#*[=./]}
  (( $#offered )) || { compset -P '*='; _files }
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _launcher_complete amp-launcher
"""
_FISH = """\
function _launcher_complete
  set -lx COMP_LINE (commandline -cp)
  amp-launcher -sc query=fish
end
complete -c amp-launcher -a '(_launcher_complete)'
"""

_OF_JOBS = ("run", "plan", "compare", "chain", "shell", "doctor", "up", "cmd")
"""Verbs that take the keys of a job."""


def main(words: Sequence[str]) -> int:
    what, _, shell = (words[0] if words else "").partition("=")
    if what not in ("install", "query") or shell not in ("bash", "zsh", "fish"):
        raise UsageError("-sc takes install=SHELL or query=SHELL, with bash, zsh or fish")
    if what == "query":
        print("\n".join(candidates(os.environ.get("COMP_LINE", ""))))
        return 0
    # For amp-launcher alone: `python -m launcher` could only be completed in the place of all that completes python.
    print({"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell], end="")
    return 0


def candidates(line: str) -> list[str]:
    """Completions of the last word of the line."""
    words = line.split(" ")
    if os.path.basename(words[0]).startswith("python"):
        if words[1:3] != ["-m", "launcher"]:
            return []
        words = words[2:]
    last, given = words[-1], words[1:-1]
    if "--" in given:
        return []  # arguments of a script
    verb = given[0] if given and "=" not in given[0] and not is_script(given[0]) else None
    if last.startswith("-"):
        return sorted(flag for flag in _flags(verb or "run") if flag.startswith(last))
    if verb == "image":
        return sorted(word for word in _of_images(given[1:]) if word.startswith(last))
    if verb not in (None, *_OF_JOBS) and not (verb == "resume" and given[1:]):
        return _runs(last)
    if "=" in last:
        return _of_key(last, given)
    completions = [f"{word}=" for word in _keys(given)]
    if verb in (None, "run", "resume"):
        completions += [f"{key}=" for key in _of_search()] if last.startswith("search.") else ["search=", "search."]
    if given == ["shell"]:
        completions += _runs(last)
    if not given:
        completions += VERBS
    if given == ["chain"]:
        completions += [path.name for pattern in ("*.yaml", "*.yml") for path in Path().glob(pattern)]
    if given in ([], ["run"], ["plan"], ["compare"]):
        completions += [path.name for path in Path().glob("*.py")]  # in other folders the shell finds files
    return sorted(word for word in completions if word.startswith(last))


def _of_key(last: str, given: Sequence[str]) -> list[str]:
    """What may follow `key=`, or the last comma of a list there."""
    key, _, value = last.partition("=")
    if key == "cluster.host":
        user = value[: value.rfind("@") + 1]
        hosts = (name if name.startswith(value) else user + name for name in completed_hosts.names(given))
        return sorted({f"{key}={name}" for name in hosts if name.startswith(value)})
    before = value[: value.rfind(",") + 1]
    taken = before.split(",")
    return [
        f"{key}={before}{word}"
        for word in _values(key)
        if word not in taken and word.startswith(value.removeprefix(before))
    ]


def _flags(verb: str) -> Iterable[str]:
    """The flags in the help of a verb: in brackets of its usage, or at the beginning of a line."""
    if verb not in VERBS:
        return ()
    return {"--help", *re.findall(r"(?:\n +|(?<!=)\[|, )(--[a-z-]+)", help_of(verb, ["--help"]))}


def _keys(given: Sequence[str]) -> Iterable[str]:
    from amp_launcher.recipe import NAMES, find
    from amp_launcher.typed import fields_of
    from launcher.config.schema import GROUPS, known_keys

    recipes = ["script" for word in given if is_script(word)]
    recipes += [word.removeprefix("recipe=") for word in given if word.startswith("recipe=")]
    recipe = find(recipes[-1] if recipes and recipes[-1] in NAMES else "mnist")
    keys = {*GROUPS, *known_keys(recipe.settings)} - {
        "cluster.kind",
        "container.kind",
        "amp.preset",
        "loss_scale.preset",
    }
    if "compare" in given or any(word.startswith("experiment=") for word in given):
        from launcher.compare.comparison import PREFIX
        from launcher.plan.model import Compare

        keys |= {"scale", *(f"{PREFIX}{name}" for name in fields_of(Compare))}
    return keys


def _values(key: str) -> list[str]:
    from typing import get_args

    from launcher.config.paths import names_in, own_folders
    from launcher.config.schema import GROUPS, annotation_of

    if key in GROUPS:
        return names_in(key, own_folders())
    annotation = _of_search().get(key) if key.partition(".")[0] == "search" else annotation_of(key)
    if annotation is bool or bool in get_args(annotation):
        return ["false", "true"]
    return [choice for choice in get_args(annotation) if isinstance(choice, str)]


def _of_search() -> dict[str, Any]:
    """The keys of a search, each with its type. They take a while to import, so that other words don't."""
    from amp_launcher.typed import fields_of
    from launcher.search import KEY, PREFIX
    from launcher.search.space import Search

    return {KEY: Literal["optuna"], **{f"{PREFIX}{name}": of for name, of in fields_of(Search).items()}}


def _of_images(given: Sequence[str]) -> list[str]:
    """What may follow `image` and these words."""
    from launcher.commands.image import KEYS
    from launcher.containers import catalogue
    from launcher.containers.image_recipes import RECIPES

    if not given:
        return list(KEYS)
    keys = [f"{key}=" for key in KEYS.get(given[0], ())]
    if any("=" not in key for key in given[1:]) or given[0] not in KEYS:
        return keys
    if given[0] == "list":
        return list(catalogue.lines())
    return [*keys, *(RECIPES if given[0] == "render" else (key.name for key in catalogue.releases()))]


def _runs(last: str) -> list[str]:
    from launcher.runs import run_ids, run_roots, selection

    names = {name for root in run_roots.known() for name in (*selection.run_names(root), *selection.sweep_names(root))}
    newest = sorted(names, reverse=True)
    return [word for name in newest for word in (name, run_ids.words_of(name)) if word.startswith(last)][:50]
