"""Comparisons: what is measured, schedule of blocks, paired statistics, verdict, and all of it as a document."""
