from __future__ import annotations

from tests.amp_launcher import forking

# That they get our callbacks where a script imports them itself is shown in a process of its own by test_attached.py.
forking.preload("lightning", "transformers.trainer")
