"""The time of a submission over a slow network: a proxy on loopback adds 100 ms each way."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import places
from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import environment, launcher
from tests.testbed.proxy import Proxy

DELAY = 0.1
"""Seconds in each direction."""
MOST = 8
"""Limit of round trips of a submission, connecting excluded."""


def submit(folder: Path) -> Measured:
    with _slow_way(folder) as (proxy, config, words):
        environ = environment(folder)
        one = [*launcher(*words, "seed=1")]
        hundred = [*launcher(*words, f"seed={','.join(map(str, range(100)))}")]
        connect = ["ssh", "-F", config, "box", "true"]
        subprocess.run(connect, check=True, stdin=subprocess.DEVNULL)
        counted = {}
        for name, argv in (("connecting", connect), ("first", one), ("again", one), ("hundred", hundred)):
            turns, up = proxy.turns, proxy.up
            command(argv, folder, environ)()
            counted[name] = (proxy.turns - turns, proxy.up - up)
        connecting = _turns_to_connect(proxy, config)

        def allowed() -> float:
            began = time.perf_counter()
            subprocess.run(connect, check=True, stdin=subprocess.DEVNULL)
            time.sleep(MOST * 2 * DELAY)
            return time.perf_counter() - began

        cases = {
            "submitting one run": command(one, folder, environ),
            f"`ssh HOST true`, and {MOST} round trips": allowed,
            "100 runs": command(hundred, folder, environ),
        }
        timings = by_turns(cases, rounds=5)
    trips = {name: turns - connecting for name, (turns, _) in counted.items()}
    return Measured(
        claim=f"a submission at 100 ms each way takes at most {MOST} round trips beyond connecting",
        limit=1.0,
        timings=timings,
        note=(
            f"round trips counted beyond the {connecting} of connecting: {trips['first']} for the first submission, "
            f"{trips['again']} for one of an unchanged tree, {trips['hundred']} for 100 runs; bytes sent: "
            f"{counted['first'][1]:,}, {counted['again'][1]:,}, {counted['hundred'][1]:,}"
        ),
    )


def _turns_to_connect(proxy: Proxy, config: str) -> int:
    """Round trips until a remote command's first output, by the transport that a submission uses."""
    from launcher.runs.address import Address
    from launcher.ssh.fabric_transport import opened

    before = proxy.turns
    stream = opened(Address(destination="box", config=config), "echo there")
    stream.read(30)
    turns = proxy.turns - before
    stream.close()
    return turns


@contextmanager
def _slow_way(folder: Path) -> Iterator[tuple[Proxy, str, list[str]]]:
    """The proxy before the testbed's sshd, an SSH configuration that goes through it, and the words of a submission."""
    known = places.testbed("sshd")
    ssh, there = known["ssh"], Path(known["shared"], f"benchmark-{folder.name}")
    key = Path(ssh["known_hosts"]).read_text(encoding="utf-8").splitlines()[0].partition(" ")[2]
    with Proxy(ssh["port"], delay=DELAY) as proxy:
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{proxy.port} {key}\n", encoding="utf-8")
        config = folder / "config"
        config.write_text(
            f"Host box\n  HostName 127.0.0.1\n  Port {proxy.port}\n  User {ssh['user']}\n"
            f"  IdentityFile {ssh['key']}\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n",
            encoding="utf-8",
        )
        words = ["cluster=ssh", "cluster.host=box", f"cluster.ssh_config={config}", f"run_root={there}"]
        # The jobs end at once: only their submission is measured.
        words += [f"python={known['python']}", "cluster.setup=[exit]", "steps=1"]
        try:
            yield proxy, str(config), words
        finally:
            shutil.rmtree(there, ignore_errors=True)
