"""One pull in a process of its own: `python -m tests.containers.puller IMAGE KIND CACHE` prints what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from containers.find import architecture, ask_here, find
from containers.pull import pull
from containers.references import resolve
from recipes.typed import plain


def main() -> None:
    name, kind, cache = sys.argv[1:]
    runtime = find(kind, ask_here)  # type: ignore[arg-type]
    assert runtime is not None
    pulled = pull(resolve(name), runtime, Path(cache), architecture=architecture(ask_here), ask=ask_here)
    print(json.dumps(plain(pulled)))


if __name__ == "__main__":
    main()
