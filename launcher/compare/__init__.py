"""Comparisons: arms, schedule of blocks, paired statistics, verdict."""
