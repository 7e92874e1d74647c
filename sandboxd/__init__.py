"""sandboxd: a per-user daemon that runs shell commands inside an operating-system sandbox."""

__version__ = "0.1.0"
