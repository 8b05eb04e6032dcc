"""Checks of a host or cluster, with remedies."""
