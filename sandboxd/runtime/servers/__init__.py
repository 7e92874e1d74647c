"""Servers of commands, reached from the host and from other commands of a session."""
