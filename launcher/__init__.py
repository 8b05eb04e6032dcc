"""One command that launches a training job in the precision mode you name, and proves that the mode ran."""

__version__ = "0.1.0"
