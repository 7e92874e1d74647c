"""`sandboxd hook`."""
