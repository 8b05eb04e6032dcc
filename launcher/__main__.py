"""`python -m launcher [VERB] [key=value ...]`: which verb, and what its errors look like.

Each verb is imported only when it is asked for: listing runs costs no Hydra, no submitit and no rich.
"""

from __future__ import annotations

import atexit
import gc
import io
import sys
from collections.abc import Sequence

from launcher.called import as_started
from launcher.commands import CALLED_ELSEWHERE, VERBS, help_of
from launcher.errors import LauncherError, of_system

QUIET = ("plan", "ls", "logs", "report", "rm", "image", "--help", "-h", "--cfg")
"""Words of command lines that start and follow nothing."""

_HELP = """\
Launch a training job in the precision mode you name, and see proof that the mode ran.

usage: python -m launcher [VERB] [SCRIPT] [key=value ...] [-- ARGUMENTS OF THE SCRIPT]

  python -m launcher amp=o2 batch=512              train here, now
  python -m launcher train.py amp=o1 -- --lr 0.1   your own script; its arguments after --
  python -m launcher amp=o0,o1,o2 batch=128,256    six runs, one after another
  python -m launcher compare amp=o0,o1,o2          what each gains here, and costs
  python -m launcher plan amp=o2                   look first
  python -m launcher ls                            what ran

verbs:
{verbs}

  `python -m launcher VERB --help` tells more of each; `python -m launcher run --help` lists every key.

flags of run and plan:
  --config-dir DIR     a folder of your own configuration files, shaped like conf/
  --cfg job            print the composed configuration and stop
  -m, --multirun       accepted; comma lists sweep with or without it
  -sc install=SHELL    completion, to be evaluated by bash, zsh or fish

exit codes: 0 done, 1 the job failed, 2 the request is wrong, 3 the place can't be used, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Returns the exit code; never shows a traceback for a user's mistake."""
    words = _verb_first(list(sys.argv[1:] if arguments is None else arguments))
    atexit.register(gc.freeze)  # Python would look for garbage among all that was imported, once more at its end
    _make_printable()
    try:
        code = _dispatch(list(words))
        sys.stdout.flush()  # here, where a reader that has gone is still no error
        return code
    except LauncherError as error:
        print(as_started(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away, as `ls | head` does; that is no error of ours. But where the exit code tells how a run
        # ended, nobody knows that yet: then it is what a shell gives a command that SIGPIPE ended.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        own = words[: words.index("--")] if "--" in words else words  # what follows is a script's
        return 0 if any(flag in own for flag in QUIET) else 141
    except OSError as error:
        from launcher.admit import clean

        print(f"error: {clean(_complaint(error))}", file=sys.stderr)
        return 3


def _verb_first(words: list[str]) -> list[str]:
    """The words with a verb before the folders of configuration files, which some type first."""
    end = 0
    while words[end : end + 1] and words[end].partition("=")[0] in ("--config-dir", "-cd"):
        end += 1 if "=" in words[end] else 2
    return [*words[end : end + 1], *words[:end], *words[end + 1 :]] if words[end : end + 1] != ["--"] else words


def _make_printable() -> None:
    """Started with `>&-`, as some daemons do: what is printed goes nowhere, and that is no error. Where the
    encoding has no bars or foreign letters, as Latin-1, or a path is no text, a `?` stands for them."""
    import os

    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or out.encoding.lower() != "utf-8"):
        out.reconfigure(errors="replace")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the end)


def _complaint(error: OSError) -> str:
    """What the system refused, in words: a folder of somebody else's, a full disk, a working folder that is gone."""
    import os

    try:
        os.getcwd()
    except FileNotFoundError:
        return "the folder that this was started in is gone; cd to one that is there"
    return of_system(error)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and words[1:2]:
        words = [words[1], "--help"]
    if words and words[0] in ("-h", "--help", "help"):
        verbs = "\n".join(f"  {name:9} {text}" for name, text in VERBS.items())
        _print_fitted(_HELP.format(verbs=verbs).rstrip("\n"))
        return 0
    if words and words[0] == "--version":
        import launcher

        print(launcher.__version__)
        return 0
    if words and words[0] in ("-sc", "--shell_completion"):
        from launcher.commands.completion import main as complete

        return complete(words[1:])
    if not words:
        from launcher.commands.first_screen import main as show

        return show()
    choices = () if words[0] in VERBS else tuple(VERBS)
    verb = "run" if choices else words.pop(0)
    if verb in ("run", "plan", "compare"):
        if words and "=" not in words[0] and words[0][:1] not in ("-", "+", "~"):
            _check_first(words, choices)
        _refuse_late_verb(words)
    import importlib

    if {"-h", "--help"} & set(words[: words.index("--")] if "--" in words else words):
        from launcher.commands import examples

        _print_fitted("\n".join([help_of(verb, words), *examples.lines(verb)]))
        return 0
    return int(importlib.import_module(f"launcher.commands.{verb}").main(words))


def _print_fitted(text: str) -> None:
    from launcher.ui import tables
    from launcher.ui.fitted import fitted

    print(fitted(as_started(text), tables.width_of(sys.stdout)))


def _check_first(words: list[str], verbs: tuple[str, ...]) -> None:
    """Raises `UsageError` for a first word without `=` that is no script. `verbs`: none where one stood before it."""
    from amp_launcher.typed import nearest
    from launcher.config import script_word
    from launcher.config.parse import half_of_pair
    from launcher.errors import UsageError

    first, *rest = words
    if advice := script_word.without_starter(words):
        raise UsageError(advice)
    if script_word.is_script(first) or script_word.NO_PAIR.match(first):
        return
    if half := half_of_pair(first):
        raise UsageError(half)
    if verbs and first in CALLED_ELSEWHERE:
        verb = " ".join([CALLED_ELSEWHERE[first], *rest])
        raise UsageError(f"{first} is not a verb; say `{verb}`{script_word.meant(first, exactly=True)}")
    if first in VERBS:
        shows = f" (`{first} --plan` shows what it would do)" if "[--plan]" in help_of(first, ["--help"]) else ""
        raise UsageError(f"{first} is a verb, as the word before it is; say one of the two{shows}")
    kinds = [f"a verb ({', '.join(verbs)})", "a file"] if verbs else ["a file"]
    raise UsageError(
        f"{first} is not {', '.join(kinds)} or key=value{nearest(first, verbs) or script_word.meant(first)}"
    )


def _refuse_late_verb(words: list[str]) -> None:
    """Raises `UsageError` for a verb among the keys."""
    for before, word in zip(["", *words], words, strict=False):
        if word == "--":
            return
        if word in VERBS and not before.startswith("-"):
            from launcher.errors import UsageError

            raise UsageError(f"{word} is a verb, and a verb is the first word: python -m launcher {word} ...")


if __name__ == "__main__":
    sys.exit(main())
