"""Checks of a place, and what to do about what they find."""
