"""Names of runs and sweeps: they sort by time, can be read aloud, and are safe as file names.

A run is `YYYYMMDD-HHMMSS-<word>-<word>` in UTC. A sweep has a name of the same form, and its cells are that name with
`-000`, `-001`, ... behind it. People type any beginning of a name, or any beginning of its words.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from amp_launcher.shown import some
from launcher.errors import UsageError

FIRST_WORDS = (
    "able agile airy amber ample apt azure balmy bold brave breezy brief bright brisk bronze busy calm candid chief "
    "civil clear clever cool coral cosy crisp curly deep deft eager early easy even exact fair fast fine firm fleet "
    "fond frank free fresh full gentle glad golden good grand green happy hardy honest humble ideal jade jolly keen "
    "kind known large late lively loud loyal lucid lucky lunar merry mild mint modest neat noble novel open opal pale "
    "plain polar prime proud quick quiet rapid rare ready regal rosy round royal rustic sage serene sharp shiny silent "
    "silver simple sleek smart smooth snowy solar solid spry stable steady still sunny sure sweet swift tall tame tidy "
    "true upbeat urban vast vivid warm wide wise witty young zesty"
).split()

SECOND_WORDS = (
    "acorn alder apple arrow aspen aster badger bamboo basil bay beach beacon beaver birch bison breeze bridge brook "
    "canyon cedar cherry cliff clover comet condor coral cove crane creek cricket dahlia daisy dawn delta desert dove "
    "dune eagle ember falcon fern field finch fjord flame forest fox garden gecko geyser ginger glacier grove gull "
    "harbor hawk hazel heron hill ibis iris island ivy jasmine juniper kestrel kiwi koala lagoon lake larch lark "
    "lemur lichen lily linden lotus lynx magpie maple marble marten meadow mesa moose moss moth nutmeg oak oasis ocean "
    "olive orchid oriole osprey otter owl panda parrot pearl pebble pepper petrel pine plover poplar prairie quail "
    "quartz raven reef ridge river robin saffron salmon seal sparrow spruce stone summit swan thistle thrush tulip "
    "valley violet walnut willow wren yarrow zebra"
).split()

_FORM = re.compile(r"(\d{8}-\d{6}-[a-z]+-[a-z]+)(-\d{3,})?")
_WORDS_AT = len("YYYYMMDD-HHMMSS-")
COMPARED = 1000
"""Of how many of the newest names the nearest to a text that fits none is looked for: comparing texts is slow."""


class Match(NamedTuple):
    id: str
    is_sweep: bool
    is_exact: bool = True
    """The text is a whole name, and not the beginning of one."""


class Named(NamedTuple):
    own: Sequence[str] = ()
    """Those that the caller gave it."""
    given: Sequence[str] = ()
    """Those of other users and hosts, which say so themselves."""


def new_id(now: float) -> str:
    """A name for a run or sweep begun at `now`, in seconds since 1970. Two made in one second may collide, which
    `mkdir` of the folder detects."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    dice = int.from_bytes(os.urandom(8), "big")
    first = FIRST_WORDS[dice % len(FIRST_WORDS)]
    second = SECOND_WORDS[dice // len(FIRST_WORDS) % len(SECOND_WORDS)]
    return f"{moment}-{first}-{second}"


def cell_id(sweep: str, index: int, cells: int) -> str:
    """The name of one cell of a sweep; all cells of a sweep get the same number of digits, so that they sort."""
    return f"{sweep}-{index:0{max(3, len(str(cells - 1)))}d}"


def is_id(name: str) -> bool:
    """Whether the name has the form of a run, a cell or a sweep."""
    return _FORM.fullmatch(name) is not None


def sweep_of(run: str) -> str | None:
    """The sweep that a cell's name belongs to; None for a single run."""
    form = _FORM.fullmatch(run)
    return form[1] if form and form[2] else None


def words_of(run: str) -> str:
    """The part of a name that people say: its words, and its number in a sweep."""
    return run[_WORDS_AT:]


def resolve(text: str, runs: Iterable[str], sweeps: Iterable[str], named: Callable[[], Named] = Named) -> Match:
    """The one run or sweep that the text means.

    A whole id wins. Then come exact names: the words of an id, and the runs of `named().own`; only where there are
    none, beginnings of ids and of their words, and the runs of `named().given`. A text that fits a sweep names the
    sweep, not its cells; all cells of one sweep mean the sweep. Raises `UsageError` for a text that fits none, with the
    nearest ids, and for one that fits several equally well, naming them.
    """
    runs, sweeps = list(runs), list(sweeps)
    begun = [Match(sweep, True, False) for sweep in sweeps if _fits(text, sweep)]
    matching = {match.id for match in begun}
    begun += [Match(run, False, False) for run in runs if _fits(text, run) and sweep_of(run) not in matching]
    if whole := [match for match in begun if match.id == text]:
        return whole[0]._replace(is_exact=True)
    own, given = named() if text else Named()
    exact = [match for match in begun if words_of(match.id) == text]
    matches = [match._replace(is_exact=True) for match in _united(exact, own, runs, sweeps)]
    if len(matches := matches or _united(begun, given, runs, sweeps)) == 1:
        return matches[0]
    if not matches:
        raise UsageError(_unknown(text, [*runs, *sweeps]))
    by_name = {*own, *given}
    told = (
        f"{match.id} (named {text})" if match.id in by_name else match.id
        for match in sorted(matches, key=lambda match: match.id)
    )
    raise UsageError(f"{text} fits {len(matches)} runs, be more specific: {some(list(told), 8)}")


def _united(matches: Sequence[Match], meant: Iterable[str], runs: Iterable[str], sweeps: Iterable[str]) -> list[Match]:
    """The matches, and those of these runs that are not among them, with a sweep in place of its cells where all of
    them are meant."""
    left = set(meant)
    united = {match.id: match for match in matches}
    meant_cells = {sweep for run in left if (sweep := sweep_of(run))}
    cells_of: dict[str | None, set[str]] = {}
    for run in runs if meant_cells else ():
        cells_of.setdefault(sweep_of(run), set()).add(run)
    for sweep in meant_cells.intersection(sweeps):
        cells = cells_of.get(sweep, set())
        if len(cells) > 1 and cells <= left:
            united.setdefault(sweep, Match(sweep, True, False))
            left -= cells
    for run in sorted(left):
        united.setdefault(run, Match(run, False, False))
    return list(united.values())


def _fits(text: str, name: str) -> bool:
    return bool(text) and (name.startswith(text) or name.startswith(text, _WORDS_AT))


def _unknown(text: str, known: Sequence[str]) -> str:
    import difflib

    if not known:
        return f"no run {text!r}: there are no runs yet (run_root=PATH looks in another folder)"
    newest = sorted(known)[-COMPARED:]
    by_word = {words_of(name): name for name in newest}
    if text.isdecimal():
        close = sorted((name for name in known if sweep_of(name) and name.endswith(f"-{text}")), reverse=True)[:3]
    else:
        close = difflib.get_close_matches(text, [*newest, *by_word], n=3, cutoff=0.5)
    names = dict.fromkeys(by_word.get(name, name) for name in close)
    advice = f"did you mean {some(list(names))}?" if names else f"the newest is {newest[-1]}"
    return f"no run {text!r}; {advice} (`ls --all` lists them, run_root=PATH looks in another folder)"
