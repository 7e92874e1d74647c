"""The soak: a mixed load for a long time, and what of it stays behind."""
