"""Change detection: directories and names."""
