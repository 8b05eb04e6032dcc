"""The run folder: whose it is, what it holds, its ids, records and states."""
