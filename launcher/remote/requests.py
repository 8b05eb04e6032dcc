"""What a host can be asked: the name of a request, and the function on the far side that answers it.

A function takes the request's arguments by keyword, and `data` where bytes came along. It returns what JSON can carry,
or is a generator that yields objects and bytes to be sent as they come. What it prints to stderr is printed here, and a
`LauncherError` that it raises is raised here.
"""

from __future__ import annotations

REQUESTS = {
    "hello": "launcher.remote.answers:hello",
    "probe": "launcher.remote.answers:probe",
    "examine": "launcher.remote.answers:examine",
    "lacking": "launcher.remote.taking_over:lacking",
    "lay_code": "launcher.remote.taking_over:lay_code",
    "submit": "launcher.remote.taking_over:submit",
    "look": "launcher.remote.answers:look",
    "log": "launcher.remote.answers:log",
    "request_stop": "launcher.remote.answers:request_stop",
    "cancel": "launcher.remote.answers:cancel",
    "unended": "launcher.remote.answers:unended",
    "resume": "launcher.remote.answers:resume",
    "remove": "launcher.remote.answers:remove",
    "contents": "launcher.remote.answers:contents",
    "files": "launcher.remote.answers:files",
}
