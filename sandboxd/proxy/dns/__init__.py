"""The name service of a sandbox."""
