"""Precision levels: their meaning, their mechanisms, and verdicts on what ran. Standard library only."""
