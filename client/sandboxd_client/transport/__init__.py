"""Connections to the daemon, and its start."""
