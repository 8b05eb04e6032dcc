"""All tests of Paddle run in this one process: importing it takes seconds."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")
