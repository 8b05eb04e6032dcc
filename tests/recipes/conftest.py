from __future__ import annotations

import os

# Parts of the suite share the cores: a second thread would only wait for them. Before a framework is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
