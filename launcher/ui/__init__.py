"""The terminal: tables, live display, units, words for states and errors."""
