"""Data sets as NumPy arrays, the same for every framework."""
