"""What a script can ask of its job. Without a launcher each call does the plain thing."""

from recipes.script_log import log

__all__ = ["log"]
