"""Imported last by the process from which others are forked: a collection in a fork would copy what it looks at."""

import gc

gc.collect()
gc.freeze()
