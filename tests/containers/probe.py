"""What a job finds around it, as JSON. Runs in the containers, so it needs Python 3.6 and nothing else.

`probe.py OUTPUT EXIT_CODE WORDS...`
"""

import getpass
import json
import os
import resource
import site
import sys


def limits():
    names = {"nofile": resource.RLIMIT_NOFILE, "core": resource.RLIMIT_CORE}
    return {name: resource.getrlimit(number) for name, number in names.items()}


def can_write(folder):
    try:
        with open(os.path.join(folder, ".probe"), "w") as stream:
            stream.write("x")
        return True
    except OSError:
        return False


def interfaces():
    with open("/proc/net/dev") as stream:
        return sorted(line.split(":")[0].strip() for line in stream.readlines()[2:])


def mounted(folder):
    """Name of the one file in every folder there -> that folder's own name."""
    if not os.path.isdir(folder):
        return {}
    return {os.listdir(os.path.join(folder, name))[0]: name for name in os.listdir(folder)}


output, code, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
facts = {
    "argv": words,
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "uid": os.getuid(),
    "gid": os.getgid(),
    "groups": sorted(os.getgroups()),
    "user": getpass.getuser(),
    "home": os.path.expanduser("~"),
    "home_is_writable": can_write(os.path.expanduser("~")),
    "code_is_writable": can_write(os.getcwd()),
    "user_site": bool(site.ENABLE_USER_SITE),
    "limits": limits(),
    "interfaces": interfaces(),
    "ipc": os.readlink("/proc/self/ns/ipc"),
    "mounted": mounted("/mounted"),
    "encoding": sys.stdout.encoding.lower(),
}
with open(output, "w") as stream:
    json.dump(facts, stream)
sys.exit(code)
