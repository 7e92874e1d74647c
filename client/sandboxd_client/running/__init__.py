"""Commands: what is wrapped, spawned and returned."""
