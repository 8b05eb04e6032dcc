"""A host without a Python for the agent: the requests that bare scripts need, answered through bash.

A bare run needs no Python of the launcher's, so containers of 2019 can run it. Files that come back are written into a
temporary folder, where the functions that answer on other hosts read them. The caller checks the answers as those of
any host.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher.typed import plain
from launcher import admit, safe_files
from launcher.admit import Refused
from launcher.code import code_store
from launcher.code.code_archive import unpacked_files
from launcher.code.snapshot import Code
from launcher.errors import LauncherError, UsageError
from launcher.probe import gpu_probing, pythons
from launcher.probe.facts import Facts
from launcher.runs import log_pieces, run_ids
from launcher.runs.address import Address
from launcher.runs.log_pieces import PIECE, LogOffset
from launcher.runs.remote_record import OURS
from launcher.runs.states import LARGEST_ATTEMPT
from launcher.ssh import bash_mirror, failures, run_answer
from launcher.ssh.bash_session import BashSession, bytes_of, nanoseconds, number, text_of
from launcher.ssh.failures import Unreachable
from launcher.ssh.methods import MOST_FILES

LARGEST_LOG = 2**40
HELP = "until then it runs bare scripts only (recipe=script train.bare=true)"


def answer(
    address: Address, no_python: str, request: str, data: bytes | None, seconds: float, arguments: Mapping[str, Any]
) -> Generator[Any, None, Any]:
    """What `Host.stream` gives. `no_python` says which Python the host lacks. Raises `LauncherError`."""
    function = getattr(Requests(address, no_python, seconds), f"on_{request}", None)
    if function is None:
        raise Unreachable(f"{no_python}; {HELP}")
    given = dict(arguments) if data is None else {**arguments, "data": data}
    with failures.admitting(address.destination):
        result = function(**given)
        if not isinstance(result, Generator):
            return _as_sent(result)
        for item in result:
            yield item if isinstance(item, bytes) else _as_sent(item)
        return None


def _as_sent(value: Any) -> Any:
    """A value as JSON carries it: lists instead of tuples."""
    return json.loads(json.dumps(value))


class Requests(BashSession):
    """The requests, under their names in `methods`."""

    def on_probe(self, asked: Mapping[str, Any]) -> Any:
        if asked["slurm"] or asked["container"] != "none" or asked["shared"] or not asked["bare"]:
            raise Unreachable(f"{self.no_python}; {HELP}, with cluster=ssh, container=none and share=none")
        if asked["uv"]:
            raise Unreachable(f"{self.no_python}; python=uv needs that too")
        workdirs = (folder for folder in asked["workdirs"] if folder != "run")
        paths = [*asked["folders"], *workdirs, *asked["inputs"], *asked["mounts"]]
        options = (pythons.path_of(asked["python"] or ""), pythons.TELL, *map(",".join, gpu_probing.QUERIES))
        values: dict[str, str] = {}
        missing = []
        for word, rest in self.lines("probe", asked["run_root"], *options, *paths):
            if word == "missing":
                missing.append(text_of(rest))
            else:
                values[word] = text_of(rest)
        needed = ("host", "user", "uid", "home", "cwd", "system", "cpus", "python", "packages", "run_root")
        admit.group(values, "facts", *needed)
        version, packages = pythons.told(values["packages"])
        gpu_fields = admit.choice(values.get("fields", options[2]), "fields of GPUs", options[2:]).split(",")
        facts = Facts(
            host=values["host"],
            user=values["user"],
            home=values["home"],
            cwd=values["cwd"],
            system=values["system"],
            python=values["python"],
            run_root=os.path.normpath(values["run_root"]),
            uid=number(values["uid"]),
            cpus=number(values["cpus"]),
            python_version=version,
            packages=packages,
            gpus=gpu_probing.parse(values.get("gpus", "").splitlines(), gpu_fields),
            gpu_problem="" if values.get("gpus", "-") else "nvidia-smi failed",
            run_root_problem=values.get("run_root_problem", ""),
            missing=tuple(missing),
            code=Code(digest="", root=""),
        )
        return plain(facts)

    def on_has_code(self, folder: str) -> bool:
        return any(self.lines("has_code", folder))

    def on_lay_code(self, data: bytes, folder: str, shared: bool) -> None:
        with tempfile.TemporaryDirectory() as top:
            place = Path(top, code_store.FOLDER)
            snapshot = code_store.store(place, Path(folder).name, unpacked_files(data, Path(top)))
            self.send("lay_code", str(Path(folder).parents[1]), snapshot, snapshot.name)

    def send(self, request: str, root: str, folder: Path, *words: str) -> None:
        """Send a request with a folder, which is laid down in a run root there."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=6, format=tarfile.GNU_FORMAT) as out:
            out.add(folder, "sent")
        data = archive.getvalue()
        of_data = (str(len(data)), hashlib.sha256(data).hexdigest())
        for _ in self.lines(request, root, *of_data, *words, data=data):
            raise Refused("its answer to a submission has a line too many")

    def on_look(self, runs: Sequence[Mapping[str, Any]], follow: bool) -> Generator[Any, None, None]:
        lines = self.lines("look", *_words(runs))
        there = bash_mirror.boot(lines)
        for question in runs:
            with tempfile.TemporaryDirectory() as folder:
                seen = bash_mirror.mirrored(Path(folder), question["id"], there, lines)
                status = {**run_answer.status(seen, question, follow), "time": there.time}
                if "log" in status:
                    status["log"][0] = status["log"][0].replace(folder, question["root"], 1)
            yield status
        for _ in lines:
            raise Refused("it answers about more runs than it was asked about")

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
        answer = self.lines("log", root, id, *options)
        there = bash_mirror.boot(answer)
        with tempfile.TemporaryDirectory() as folder:
            seen = bash_mirror.mirrored(Path(folder), id, there, answer)
            if not seen.files.exists:
                raise UsageError(f"there is no run {id} in {root} on {self.address.destination}")
            starts = {}
            for word, rest in answer:
                if word != "log" or len(rest) != 4 or rest[0] not in ("stdout", "stderr") or rest[0] in starts:
                    raise Refused("an answer about a log has a wrong line")
                of_attempt, offset = number(rest[1], LARGEST_ATTEMPT), number(rest[2], LARGEST_LOG)
                content = bytes_of(rest[3:])[:PIECE]
                starts[rest[0]] = offset
                name = f"attempts/{of_attempt}/{rest[0]}.log"
                with open(safe_files.open_in(seen.run.folder, name, os.O_WRONLY | os.O_CREAT, make=True), "wb") as out:
                    out.seek(offset)
                    out.write(content)
            admit.group(starts, "a log", "stdout", "stderr")
            piece = log_pieces.piece(
                seen.run, LogOffset(of_attempt, **starts), seen.state if following else None, attempt=attempt
            )
        yield from run_answer.log_piece(piece)

    def on_request_stop(self, runs: Sequence[Mapping[str, str]]) -> None:
        list(self.lines("request_stop", *_words(runs)))

    def on_cancel(
        self, runs: Sequence[Mapping[str, str]], now: bool, stop_grace: float, term_grace: float
    ) -> list[str]:
        grace = "0" if now else str(round(stop_grace))  # it begins with TERM, as a bare script has no other signal
        left = {rest[0]: rest[1:] for _, rest in self.lines("cancel", grace, *_words(runs)) if rest}
        return [f"process {', '.join(left[run['id']])} does not end" if run["id"] in left else "" for run in runs]

    def on_remove(self, runs: Sequence[Mapping[str, str]], force: bool, now: bool) -> None:
        list(self.lines("remove", "yes" if force else "", "yes" if now else "", *_words(runs)))

    def on_sizes(self, runs: Sequence[Mapping[str, str]]) -> list[int]:
        return [1024 * number(rest[0]) for word, rest in self.lines("sizes", *_words(runs)) if word == "size" and rest]

    def on_contents(self, root: str, id: str) -> list[list[Any]]:
        listed: list[list[Any]] = []
        left_out = 0
        joined = b"".join(bytes_of(rest) for _, rest in self.lines("contents", root, id))
        for entry in joined.split(b"\0")[:-1]:
            size, changed, name = ([*entry.decode("utf-8", "surrogateescape").split(" ", 2), "", ""])[:3]
            if not admit.is_path(name) or name.casefold() in OURS or len(listed) == MOST_FILES:
                left_out += 1
            else:
                listed.append([name, number(size), nanoseconds(changed)])
        if left_out:
            print(f"{left_out} files stay there: their names can't be fetched", file=sys.stderr, flush=True)
        return listed

    def on_files(self, root: str, id: str, wanted: Sequence[Sequence[Any]]) -> Generator[Any, None, None]:
        words: list[str] = []
        for name, offset, size, mtime in wanted:
            words += (name, str(offset), f"{size} {mtime // 10**9}.{mtime % 10**9:09d}")
        lines = self.lines("files", root, id, *words, streamed=True)
        for name, *_ in wanted:
            word, rest = next(lines, ("", []))
            if word == "gone":
                yield {"name": name, "gone": True}
                continue
            if word != "head" or len(rest) != 3:
                raise Refused("the answer about a file does not begin with its size")
            size, changed, offset = number(rest[0]), nanoseconds(rest[1]), number(rest[2])
            yield {"name": name, "size": size, "mtime": changed, "offset": offset}
            received = offset
            for word, rest in lines:
                if word != "part":
                    break
                part = bytes_of(rest)
                received += len(part)
                yield part
            if word != "sum" or not rest:
                raise Refused(f"{name} has no end")
            yield {"name": name, "sha256": rest[0], "short": max(0, size - received)}


def _words(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Root and id of each run. Raises `LauncherError` for what is no run's id."""
    for run in runs:
        if not run_ids.is_id(run["id"]):
            raise LauncherError(f"{run['id']} is not the name of a run")
    return [word for run in runs for word in (run["root"], run["id"])]
