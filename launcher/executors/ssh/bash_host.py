"""A host without a Python of ours: the requests that bare scripts need, answered through bash.

A bare run's script needs no Python of the launcher's, so containers of 2019 can run it. Each request is one session of
`bash_programs`; files that come back are laid into a temporary folder, and the same functions that answer on other
hosts read them. The answers are admitted as those of any host are, by whoever asked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from containers.words import to_bash
from launcher import admit
from launcher.admit import Refused
from launcher.code import code_store
from launcher.code.snapshot import Code
from launcher.config import job_environment
from launcher.errors import LauncherError, UsageError
from launcher.executors import execute
from launcher.executors.local import backend
from launcher.executors.ssh.submit_client import unpacked
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.probe import gpu_probing, pythons
from launcher.probe.facts import Facts
from launcher.runs import log_pieces, run_ids, store
from launcher.runs.log_pieces import PIECE, Place
from launcher.runs.remote_record import OURS
from launcher.runs.states import LARGEST_ATTEMPT, Liveness, Seen, judge, needs_liveness
from launcher.runs.store import Files, Run
from launcher.ssh import bash_programs as programs
from launcher.ssh import run_answer
from launcher.ssh.host import SILENCE, BadAnswer, Host, Lost, Unreachable
from launcher.ssh.methods import LONGEST_SMALL, MOST_ATTEMPTS, MOST_FILES, SMALL
from launcher.ssh.stream import Stalled
from recipes.typed import plain

LONGEST_ANSWER = 2**26
"""Bytes of an answer that comes as a whole."""
LARGEST_LOG = 2**40
HELP = "until then it runs bare scripts only (recipe=script train.bare=true)"

Line = tuple[str, list[str]]


def answer(
    host: Host, why: str, request: str, data: bytes | None, seconds: float, arguments: Mapping[str, Any]
) -> Generator[Any, None, Any]:
    """What `Host.stream` gives, of a host of which `why` says what Python it lacks. Raises `LauncherError`."""
    function = getattr(_Bash(host, why, seconds), f"on_{request}", None)
    if function is None:
        raise Unreachable(f"{why}; {HELP}")
    given = dict(arguments) if data is None else {**arguments, "data": data}
    with host.admitting():
        found = function(**given)
        if not isinstance(found, Generator):
            return _as_sent(found)
        for item in found:
            yield item if isinstance(item, bytes) else _as_sent(item)
        return None


def _as_sent(value: Any) -> Any:
    """A value as it comes over a connection: lists where there were tuples."""
    return json.loads(json.dumps(value))


class _Bash:
    """The requests, each under the name that it has in `methods`."""

    def __init__(self, host: Host, why: str, seconds: float) -> None:
        self._host, self._why, self._seconds = host, why, seconds

    def _lines(self, program: str, *arguments: str, data: bytes = b"", whole: bool = True) -> Iterator[Line]:
        """The lines that a program answers with: a word, and what follows it."""
        mark, name = os.urandom(8).hex(), self._host.address.destination
        words = " ".join(to_bash(each) for each in arguments)
        # A function first: bash has read all of the program before any of it takes the data behind.
        text = f"main() {{\n{programs.COMMON}\n{program}\n}}\nmark={mark}\nmain {words}; say end; exit\n"
        stream = self._host.transport(programs.COMMAND)
        until, held, came, begun = time.monotonic() + self._seconds, b"", 0, False
        try:
            sent = text.encode("utf-8", "surrogateescape") + data
            for start in range(0, len(sent), 2**16):
                stream.write(sent[start : start + 2**16], SILENCE)
            while True:
                part = stream.read(max(0.01, until - time.monotonic()))
                if not part:
                    if not begun and stream.exit_code() in (126, 127):
                        raise Unreachable(f"{self._why}; nor has it a bash: {admit.clean_lines(stream.complaint())}")
                    complaint = admit.clean_lines(stream.complaint())
                    raise Lost(f"the connection to {name} was lost: {complaint}".rstrip(": "))
                *ended, held = (held + part).split(b"\n")
                came += len(part)
                if (came if whole else len(held)) > LONGEST_ANSWER:
                    raise Refused("its answer has no end")
                for line in ended:
                    said, *rest = line.decode("ascii", "replace").split(" ")
                    if said != mark or not rest:
                        continue
                    begun, until = True, time.monotonic() + self._seconds if not whole else until
                    if rest[0] == "end":
                        return
                    if rest[0] == "fail":
                        raise UsageError(admit.lines(_text(rest[1:]), "its error"))
                    yield rest[0], rest[1:]
        except Stalled:
            raise BadAnswer(f"{name} has not answered in {self._seconds:.0f} s") from None
        except OSError as error:
            raise Lost(f"the connection to {name} was lost: {error or type(error).__name__}") from None
        finally:
            stream.close()

    def on_probe(self, asked: Mapping[str, Any]) -> Any:
        if asked["slurm"] or asked["container"] != "none" or asked["shared"] or not asked["bare"]:
            raise Unreachable(f"{self._why}; {HELP}, with cluster=ssh, container=none and share=none")
        named = [*asked["folders"], *(each for each in asked["workdirs"] if each != "run"), *asked["mounts"]]
        fields = (gpu_probing.FIELDS, [each for each in gpu_probing.FIELDS if each not in gpu_probing.YOUNG])
        options = (asked["python"] or "", pythons.TELL, *(",".join(each) for each in fields))
        told: dict[str, str] = {}
        missing = []
        for word, rest in self._lines(programs.PROBE, asked["run_root"], *options, *named):
            if word == "missing":
                missing.append(_text(rest))
            else:
                told[word] = _text(rest)
        needed = ("host", "user", "uid", "home", "cwd", "system", "cpus", "python", "packages", "run_root")
        admit.group(told, "facts", *needed)
        version, packages = pythons.told(told["packages"])
        named_gpus = told.get("fields", "").split(",")
        facts = Facts(
            host=told["host"],
            user=told["user"],
            home=told["home"],
            cwd=told["cwd"],
            system=told["system"],
            python=told["python"],
            run_root=os.path.normpath(told["run_root"]),
            uid=_number(told["uid"]),
            cpus=_number(told["cpus"]),
            python_version=version,
            packages=packages,
            gpus=gpu_probing.parse(told.get("gpus", "").splitlines(), named_gpus),
            gpu_problem="" if told.get("gpus", "-") else "nvidia-smi failed",
            run_root_problem=told.get("run_root_problem", ""),
            missing=tuple(missing),
            code=Code(digest="", root="", files=0, bytes=0),
        )
        return plain(facts)

    def on_lacking(self, folder: str, files: Mapping[str, str]) -> list[str]:
        return [] if any(self._lines(programs.HAS_CODE, folder)) else list(files)

    def on_submit(self, data: bytes) -> list[str]:
        message, code, secrets = unpacked(data)
        asked = [record.from_json(each) for each in message["plans"]]
        plan = asked[0]
        self._check(asked)
        sent = _sent(plan, message, code, secrets)
        token, digest = message["came_from"]["token"], hashlib.sha256(sent).hexdigest()
        words = (plan.run_root, plan.run_id, token, plan.code, str(len(sent)), digest, job_environment.KEPT)
        for _ in self._lines(programs.SUBMIT, *words, data=sent):
            raise Refused("it says more than was asked")
        return [plan.run_id]

    def _check(self, asked: Sequence[Plan]) -> None:
        """Refuse what only a Python over there can do. Raises `UsageError`."""
        plan = asked[0]
        if len(asked) > 1 or plan.arms:
            raise UsageError(f"{self._why}; until then it takes one run at a time: no sweep, no comparison")
        if plan.script is None or not plan.script.bare or plan.container or plan.queue != "direct" or plan.after:
            raise UsageError(f"{self._why}; {HELP}, outside containers, without after=")

    def on_look(self, runs: Sequence[Mapping[str, Any]], follow: bool) -> Generator[Any, None, None]:
        lines = self._lines(programs.LOOK, *_words(runs))
        here = _here(lines)
        for question in runs:
            with tempfile.TemporaryDirectory() as folder:
                seen = _mirrored(Path(folder), question["id"], here, lines)
                told = run_answer.status(seen, question, follow)
                if "log" in told:
                    told["log"][0] = told["log"][0].replace(folder, question["root"], 1)
            yield told
        for _ in lines:
            raise Refused("it tells of more runs than it was asked about")

    def on_log(
        self,
        root: str,
        id: str,
        place: Mapping[str, Any] | None,
        attempt: int | None,
        lines: int | None,
        following: bool,
    ) -> Generator[Any, None, None]:
        wanted = place["attempt"] if place else attempt
        offsets = [str(place[name]) if place else "0" for name in ("stdout", "stderr")]
        options = (str(wanted or ""), *offsets, "" if place or lines is None else str(max(0, lines)))
        came = self._lines(programs.LOG, root, id, *options)
        here = _here(came)
        with tempfile.TemporaryDirectory() as folder:
            seen = _mirrored(Path(folder), id, here, came)
            if not seen.files.exists:
                raise UsageError(f"there is no run {id} in {root} on {self._host.address.destination}")
            begins = {}
            for word, rest in came:
                if word != "log" or len(rest) != 4 or rest[0] not in ("stdout", "stderr") or rest[0] in begins:
                    raise Refused("what it tells of a log is none")
                number, offset = _number(rest[1], LARGEST_ATTEMPT), _number(rest[2], LARGEST_LOG)
                content = _bytes(rest[3:])[:PIECE]
                begins[rest[0]] = offset
                name = f"attempts/{number}/{rest[0]}.log"
                with open(admit.open_in(seen.run.folder, name, os.O_WRONLY | os.O_CREAT, make=True), "wb") as out:
                    out.seek(offset)
                    out.write(content)
            admit.group(begins, "a log", "stdout", "stderr")
            found = log_pieces.piece(
                seen.run, Place(number, **begins), seen.state if following else None, attempt=attempt
            )
        yield from run_answer.log_piece(found)

    def on_request_stop(self, runs: Sequence[Mapping[str, str]]) -> None:
        list(self._lines(programs.STOP, *_words(runs)))

    def on_unended(self, runs: Sequence[Mapping[str, str]]) -> list[bool]:
        lives = {rest[0] for word, rest in self._lines(programs.ALIVE, *_words(runs)) if word == "lives" and rest}
        return [each["id"] in lives for each in runs]

    def on_cancel(
        self, runs: Sequence[Mapping[str, str]], now: bool, stop_grace: float, term_grace: float
    ) -> list[str]:
        grace = "0" if now else str(round(term_grace))  # nobody can ask a bare script to save
        left = {rest[0]: rest[1:] for _, rest in self._lines(programs.CANCEL, grace, *_words(runs)) if rest}
        return [f"process {', '.join(left[each['id']])} does not end" if each["id"] in left else "" for each in runs]

    def on_remove(self, runs: Sequence[Mapping[str, str]], force: bool) -> None:
        list(self._lines(programs.REMOVE, "yes" if force else "", *_words(runs)))

    def on_contents(self, root: str, id: str) -> list[list[Any]]:
        found: list[list[Any]] = []
        left = 0
        joined = b"".join(_bytes(rest) for _, rest in self._lines(programs.CONTENTS, root, id))
        for each in joined.split(b"\0")[:-1]:
            size, changed, name = ([*each.decode("utf-8", "surrogateescape").split(" ", 2), "", ""])[:3]
            if not admit.is_path(name) or name.casefold() in OURS or len(found) == MOST_FILES:
                left += 1
            else:
                found.append([name, _number(size), _nanoseconds(changed)])
        if left:
            print(f"{left} files stay there: their names can't be fetched", file=sys.stderr, flush=True)
        return found

    def on_files(self, root: str, id: str, wanted: Sequence[Sequence[Any]]) -> Generator[Any, None, None]:
        words = [
            each
            for name, offset, size, mtime in wanted
            for each in (name, str(offset), f"{size} {mtime // 10**9}.{mtime % 10**9:09d}")
        ]
        lines = self._lines(programs.FILES, root, id, *words, whole=False)
        for name, *_ in wanted:
            word, rest = next(lines, ("", []))
            if word == "gone":
                yield {"name": name, "gone": True}
                continue
            if word != "head" or len(rest) != 3:
                raise Refused("what it tells of a file is none")
            size, changed, offset = _number(rest[0]), _nanoseconds(rest[1]), _number(rest[2])
            yield {"name": name, "size": size, "mtime": changed, "offset": offset}
            came = offset
            for word, rest in lines:
                if word != "part":
                    break
                part = _bytes(rest)
                came += len(part)
                yield part
            if word != "sum" or not rest:
                raise Refused(f"{name} has no end")
            yield {"name": name, "sha256": rest[0], "short": max(0, size - came)}


def _sent(plan: Plan, message: Mapping[str, Any], code: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> bytes:
    """The run's folder, and the snapshot of its code where that goes along, as a compressed tar."""
    with tempfile.TemporaryDirectory() as top:
        run, received = Path(top, "run"), Path(top, "received")
        for folder in (run, run / "attempts", received):
            store.make_folder(folder, shared=False)
        execute.write(plan, run, message["passed"])
        store.write_json(run / "provenance.json", message["came_from"])
        store.write_text(run / ".token", message["came_from"]["token"])
        files = {
            run / Path(plan.secrets[name]).relative_to(plan.run_dir): secrets[label]
            for name, label in message["secrets_of"][0].items()
        }
        job_environment.lay_secrets(files)
        laid = None
        if code:
            for name, content in code.items():
                code_store.make_parents(received, name)
                (received / name).write_bytes(content)
            found = {name: received / name for name in code}
            laid = code_store.store(Path(top, code_store.FOLDER), plan.code, found, message["executable"])
        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6, format=tarfile.GNU_FORMAT) as out:
            out.add(run, "run")
            if laid:
                out.add(laid, "code")
        return whole.getvalue()


Here = tuple[str, str]
"""The id of a host's boot, and its name."""


def _here(lines: Iterator[Line]) -> Here:
    word, rest = next(lines, ("", []))
    if word != "here" or len(rest) != 2:
        raise Refused("it does not say which host it is")
    return rest[0], _text(rest[1:])


_OF_ATTEMPT = re.compile(r"attempts/(\d{1,6})/(stopped\.json|failed\.json|stdout\.log|stderr\.log)")


def _mirrored(top: Path, id: str, here: Here, lines: Iterator[Line]) -> Seen:
    """The next run that is told of, its small files laid into a folder here. Raises `Refused`."""
    folder, alive, numbers = top / id, set[tuple[int, int]](), 0
    for word, rest in lines:
        if word == "next":
            break
        if word == "exists" and not folder.exists():
            folder.mkdir()
        elif word == "alive" and len(rest) == 2:
            alive.add((_number(rest[0]), _number(rest[1])))
        elif word == "attempt" and len(rest) == 1 and numbers < MOST_ATTEMPTS:
            admit.make_in(folder, f"attempts/{_number(rest[0], LARGEST_ATTEMPT - 1)}")
            numbers += 1
        elif word == "file" and len(rest) == 4:
            name, content = rest[0], _bytes(rest[3:])
            if name not in (*SMALL, "STOP", "cancelled", "launch.log") and not _OF_ATTEMPT.fullmatch(name):
                raise Refused("it sends a file that nobody asked for")
            if len(content) > LONGEST_SMALL:
                raise Refused(f"{name} is longer than was asked for")
            admit.write_in(folder, name, content, modified=_nanoseconds(rest[2]))
        else:
            raise Refused("what it tells of a run is none")
    else:
        raise Refused("it tells of fewer runs than it was asked about")
    files = store.load(str(folder))
    return Seen(
        Run(str(top), id), files, judge(files, _liveness(files, here, alive) if needs_liveness(files) else None)
    )


def _liveness(files: Files, here: Here, alive: set[tuple[int, int]]) -> Liveness:
    process = backend.answering(files)
    if process is None:
        return Liveness("unknown", "its files name no process")
    if process.host != here[1]:
        return Liveness("unknown", f"it runs on {process.host}, which can't be seen from {here[1]}")
    if process.boot != here[0]:
        return Liveness("gone", f"{process.host} was restarted since")
    if (process.pid, process.start) in alive:
        return Liveness("alive")
    return Liveness("gone", f"process {process.pid} is gone: killed, or ended without a word")


def _words(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Root and name of each run. Raises `LauncherError` for what is no run's name."""
    for each in runs:
        if not run_ids.is_id(each["id"]):
            raise LauncherError(f"{each['id']} is not the name of a run")
    return [word for each in runs for word in (each["root"], each["id"])]


def _bytes(words: Sequence[str]) -> bytes:
    try:
        return base64.b64decode("".join(words), validate=True)
    except binascii.Error:
        raise Refused("what it sends is not base64") from None


def _text(words: Sequence[str]) -> str:
    return _bytes(words).decode("utf-8", "replace")


def _number(text: str, most: int = admit.LARGEST) -> int:
    """A whole number in decimal digits. Raises `Refused`."""
    return admit.whole(int(text) if re.fullmatch(r"[0-9]{1,19}", text) else text, "a number", most)


def _nanoseconds(text: str) -> int:
    """Seconds with a fraction, as GNU prints times. Raises `Refused`."""
    found = re.fullmatch(r"(\d{1,10})\.(\d{9})\d?", text)
    if found is None:
        raise Refused("a time of change is none")
    return int(found[1]) * 10**9 + int(found[2])
