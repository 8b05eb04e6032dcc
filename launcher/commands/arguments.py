"""Shared by commands: parsing their words, and the runs that they name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from launcher.errors import TYPED, UsageError, of_settings
from launcher.runs import run_ids, run_roots, selection
from launcher.runs.selection import Selection
from launcher.runs.store import Run


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap

        # A command that is to be copied, as `pip install 'amp-launcher[export]'`, is not split at its hyphen.
        return textwrap.fill(
            " ".join(text.split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )


class Parser(argparse.ArgumentParser):
    """argparse, with errors that are raised in the launcher's own way."""

    def __init__(self, verb: str, words: str, description: str) -> None:
        super().__init__(
            prog=f"python -m launcher {verb}",
            usage=f"python -m launcher {verb} {words} [run_root=PATH]",
            description=description,
            epilog="RUN and SWEEP are an id, any unique beginning of an id or of its two words, or the text of name=, "
            "which wins over a beginning. SWEEP 002 is one cell of a sweep; 002 alone is a cell that has not ended. "
            "Without run_root= all run roots that this machine has submitted to are searched.",
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        self.verb = verb
        self.add_argument("words", nargs="*", help=argparse.SUPPRESS)

    def read(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
        """The flags, the names of runs, and the run roots to look in. Raises `UsageError`."""
        options = self.parse_intermixed_args(arguments)
        names, roots, _ = split(options.words)
        return options, names, roots

    def error(self, message: str) -> NoReturn:
        import difflib

        words = message.split()
        near = difflib.get_close_matches(words[-1], self._option_string_actions, n=1)
        hint = f"did you mean {near[0]}?" if near and near[0] != words[-1] else f"`{self.prog} --help` has the choices"
        raise UsageError(f"{self.verb}: {message}; {hint}")


def runs_and_keys(verb: str, arguments: Sequence[str], hint: str) -> tuple[list[str], dict[str, str], dict[str, bytes]]:
    """Names of runs, `key=value` by key, and `secrets.NAME` by name. `hint` goes with the refusal of a flag.

    Raises `UsageError`.
    """
    from launcher.config.job_environment import typed_secrets

    for flag in arguments:
        if flag.startswith("-"):
            raise UsageError(f"{verb} has no flag {flag} (only --help); {hint}")
    words = [word for word in arguments if not word.startswith("secrets.")]
    return (
        [word for word in words if "=" not in word],
        dict(word.split("=", 1) for word in words if "=" in word),
        typed_secrets(word for word in arguments if word.startswith("secrets.")),
    )


def boolean(key: str, text: str) -> bool:
    """The value of a key. Raises `UsageError`."""
    from amp_launcher.values import from_text

    with of_settings(after=TYPED):
        return bool(from_text(text, bool, key))


def positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number from 1")
    return int(text)


def split(words: Sequence[str], own: Sequence[str] = ()) -> tuple[list[str], list[str], dict[str, str]]:
    """The names of runs among the words, the run roots to look in, and the values of the command's `own` keys. Raises
    `UsageError` for another key."""
    names, values, known = [], dict[str, str](), (*own, "run_root")
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key in known:
            values[key] = value
        else:
            from amp_launcher.typed import nearest

            raise UsageError(f"unknown key {key} in {word}{nearest(key, known)} (known here: {', '.join(known)})")
    return names, run_roots.named(values.pop("run_root", None)), values


def newest(roots: Sequence[str], *, own: bool = False) -> Run:
    """The newest run, or the caller's `own`, named on stderr. Raises `UsageError` where there is none."""
    run = selection.newest_own(roots) if own else next(iter(selection.newest(roots, 1)), None)
    if run is None:
        where = f" in {', '.join(roots)}" if roots else " yet"
        raise UsageError(f"there are no runs{' of yours' * own}{where}; run_root=PATH looks in another folder")
    print(f"newest run: {run.id}", file=sys.stderr)
    return run


def newest_run_or_sweep(roots: Sequence[str]) -> Selection:
    """The newest run, or the whole sweep that it is in, named on stderr. Raises `UsageError` where there is none."""
    last = selection.newest(roots, 1)
    return whole("newest", last[0]) if last else Selection(None, (newest(roots),))


def whole(which: str, run: Run) -> Selection:
    """The run, or the whole sweep that it is in, named on stderr."""
    sweep = run_ids.sweep_of(run.id)
    print(f"{which} {'sweep' if sweep else 'run'}: {sweep or run.id}", file=sys.stderr)
    return Selection(sweep, tuple(selection.sweep_runs(run.root, sweep)) if sweep else (run,))


def one_of(verb: str, names: Sequence[str], roots: Sequence[str], what: str = "run or sweep") -> Selection:
    """The run or sweep that the names mean, for a verb that takes one. Raises `UsageError`."""
    found = selection.find_all(names, roots)
    if len(found) != 1:
        raise UsageError(f"{verb}: one {what} at a time, not {len(found)}: {' '.join(names)}")
    return found[0]


def single(verb: str, names: Sequence[str], roots: Sequence[str]) -> Run:
    """The run that the names mean, for a verb that takes one. Raises `UsageError` for a sweep."""
    selected = one_of(verb, names, roots, "run")
    if selected.sweep is not None:
        raise UsageError(
            f"{verb}: {selected.sweep} is a sweep of {len(selected.runs)} runs; name one, as {selected.runs[0].id}"
        )
    return selected.runs[0]


def all_runs(what: Sequence[Selection]) -> list[Run]:
    """The runs meant, each once."""
    return list(dict.fromkeys(run for selected in what for run in selected.runs))


def chosen(names: Sequence[str], roots: Sequence[str]) -> list[Run]:
    """The runs that the names mean, each once; all names are looked up before anything is done."""
    return all_runs(selection.find_all(names, roots))
