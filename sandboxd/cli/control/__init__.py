"""Commands that start, stop and inspect the daemon."""
