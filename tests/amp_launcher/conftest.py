from __future__ import annotations

import faulthandler
import sys

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key


def pytest_collection_finish(session: pytest.Session) -> None:
    """A crash tells its test. Paddle, once imported, answers signals itself, and writes where pytest keeps it."""
    fd = session.config.stash.get(fault_handler_stderr_fd_key, None)
    if "paddle" in sys.modules and fd is not None:
        sys.modules["paddle"].disable_signal_handler()
        faulthandler.disable()
        faulthandler.enable(file=fd)
