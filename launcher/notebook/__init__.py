"""Runs from Python: started by the words of the command line, and shown where they are looked at."""
