"""Policy: what is allowed, and every decision that follows from it. Pure: no I/O, clock, environment or file system."""
