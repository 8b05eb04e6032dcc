import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from launcher.commands import logs
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import log_pieces, run_files, store

from ..run_folders import NAME, STEPPING, SWEEP, begin, command, finished, make, start, state, sweep, until


@pytest.fixture
def printed(capfdbinary):
    def show(*arguments):
        assert logs.main(list(arguments)) == 0
        return capfdbinary.readouterr()

    return show


def with_logs(root, attempts=1):
    folder = finished(root)
    for number in range(1, attempts + 1):
        (folder / f"attempts/{number}").mkdir(exist_ok=True)
        (folder / f"attempts/{number}/stdout.log").write_bytes(b"".join(b"out %d.%d\n" % (number, n) for n in range(5)))
        (folder / f"attempts/{number}/stderr.log").write_bytes(b"err %d \xff\xc3\xa9 no end" % number)
    return folder


def test_what_an_attempt_wrote_is_printed_byte_for_byte_where_it_was_written(root, printed):
    folder = with_logs(root, attempts=2)
    for number, words in ((2, [NAME]), (1, [NAME, "--attempt", "1"])):
        written = [(folder / f"attempts/{number}/{name}").read_bytes() for name in log_pieces.NAMES]
        assert list(printed(*words)) == written
    out, err = printed(NAME, "--lines", "2")
    assert out == b"out 2.3\nout 2.4\n" and err.endswith(b"no end")
    out, err = printed()
    assert out.startswith(b"out 2.0") and err.startswith(f"newest run: {NAME}\n".encode())


def test_a_run_that_has_not_started_has_printed_nothing(root, printed):
    make(root)
    out, err = printed(NAME)
    assert out == b"" and b"has printed nothing: lost it was never submitted" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attempt", "3"], "--attempt 3: .* has no such attempt; it has 1"),
        (["--attempt", "0"], "--attempt: 0 should be a whole number from 1"),
        (["--lines", "x"], "--lines: x should be a whole number from 1"),
        (["calm"], f"is a sweep of 2 runs; name one, as {SWEEP}-000"),
        ([NAME, NAME], "one run at a time"),
    ],
)
def test_a_mistake_gets_one_clear_error(root, arguments, message):
    with_logs(root)
    sweep(root, 2)
    with pytest.raises(UsageError, match=message):
        logs.main([*arguments, *([NAME] if arguments[0].startswith("--") else [])])


def test_following_shows_lines_as_they_come_and_ends_with_the_run(root):
    read = root / "read"
    folder = begin(root, f"STEPS=30\n{STEPPING}\nuntil [ -e {read} ]; do sleep 0.05; done\nprintf 'the end' >&2")
    follower = subprocess.Popen(
        command("logs", "-f", NAME), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    )
    assert follower.stdout.readline() == "step 1\n"
    assert state(folder).name == "running"
    read.touch()
    with follower:
        assert follower.stdout.read().splitlines() == [f"step {number}" for number in range(2, 31)]
        assert follower.stderr.read() == "the end"
    assert follower.returncode == 0


def test_following_a_queued_run_says_so_once_and_then_shows_its_output(root):
    first = make(root, trainer="sleep 3")
    second = make(root, f"{SWEEP}-001", trainer="echo here")
    start(first, second)
    done = subprocess.run(command("logs", "-f", second.name), capture_output=True, env=os.environ, text=True)
    assert done.stdout == "here\n"
    assert re.fullmatch(rf"{second.name} is queued( \(.*\))?; its output follows once it starts\n", done.stderr)


def test_following_goes_on_with_the_next_attempt(root, printed):
    folder = make(root, trainer=f"STEPS=3\n{STEPPING}\n[ $LAUNCHER_ATTEMPT = 1 ] && sleep 300\nexit 0")
    first = start(folder)
    log = folder / "attempts/1/stdout.log"
    until(lambda: log.exists() and b"step 3" in log.read_bytes())

    def again():
        store.mark_unfinished(root, NAME)
        start(folder).wait()  # as the next attempt, while the follower still sees the first one running
        backends.end({str(folder): run_files.load(str(folder))}, 0)
        first.wait()

    second = threading.Timer(0.5, again)
    second.start()
    out = printed("-f", NAME).out
    second.join()
    assert out == b"step 1\nstep 2\nstep 3\n" * 2


def test_a_log_of_a_hundred_megabytes_is_followed_whole_with_memory_flat(root, tmp_path):
    line = "x" * 99
    begin(root, f"yes {line} | head -n 1000000")
    text = (
        "import re, sys\nfrom launcher.commands import logs\n"
        f"code = logs.main(['-f', {NAME!r}])\n"
        # Not ru_maxrss, which begins with what the process that started this one had.
        "print(re.search(r'VmHWM:.*', open('/proc/self/status').read())[0], file=sys.stderr)\nsys.exit(code)"
    )
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run([sys.executable, "-c", text], stdout=out, stderr=subprocess.PIPE, env=os.environ)
    assert done.returncode == 0
    assert (tmp_path / "out").stat().st_size == 100_000_000
    with open(tmp_path / "out", "rb") as copied:
        assert all(read == line.encode() + b"\n" for read in copied)
    assert int(re.findall(rb"\d+", done.stderr)[-1]) < 64 * 1024


def test_a_log_is_unchanged_in_a_pipe_and_cleaned_on_a_terminal(root):
    folder = finished(root)
    printed = b"\x1b[31mred\x1b[0m\x1b]0;owned\x07 \x9b\n"
    (folder / "attempts/1/stdout.log").write_bytes(printed)
    words = command("logs", NAME, f"run_root={root}")
    assert subprocess.run(words, capture_output=True).stdout == printed
    own, given = pty.openpty()
    subprocess.run(words, stdout=given, stderr=subprocess.DEVNULL, check=True)
    os.close(given)
    assert os.read(own, 1000) == "\x1b[31mred\x1b[0m \ufffd\r\n\x1b[0m".encode(), "it ends with the terminal's colours"
    os.close(own)
