"""A per-user daemon that runs shell commands in an operating-system sandbox."""

__version__ = "0.1.0"
