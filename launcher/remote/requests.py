"""What a host can be asked: the name of a request, and the function on the far side that answers it.

A function takes the request's arguments by keyword, and `data` where bytes came along. It returns what JSON can carry,
or is a generator that yields objects and bytes to be sent as they come. What it prints to stderr is printed here, and a
`LauncherError` that it raises is raised here.
"""

from __future__ import annotations

REQUESTS = {
    "hello": "launcher.remote.answers:hello",
}
